"""Collect the rows that a ``@register_tasks`` function returns or yields, and check that each is a task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import Any


def listing(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the parameters of ``func`` that returns its rows as a list."""
    if inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func):

        @functools.wraps(func)
        async def rows_async(*args: Any, **named: Any) -> list[dict[str, Any]]:
            made = func(*args, **named)
            if inspect.isawaitable(made):
                made = await made
            if isinstance(made, AsyncIterable):
                return checked([row async for row in made])
            return checked(made)

        return rows_async

    @functools.wraps(func)
    def rows(*args: Any, **named: Any) -> list[dict[str, Any]]:
        return checked(func(*args, **named))

    return rows


def checked(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the rows as JSON data.

    Raises:
        ValueError: a row is not a task, or two have the same id.
    """
    from aenv.schema.tasks import Task

    found: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Task | Mapping):
            raise ValueError(f"task {number} is {type(row).__name__}; expected a dict or a Task")
        try:
            task = row if isinstance(row, Task) else Task.of_row(row, number)
        except ValueError as error:
            raise ValueError(f"task {number}: {problems(error)}") from None
        if task.id in found:
            raise ValueError(f"two tasks have the id {task.id!r}")
        found[task.id] = task.as_row()
    return list(found.values())


def problems(error: ValueError) -> str:
    """Return the problems of a row, as pydantic reports them, on one line."""
    listed = getattr(error, "errors", None)
    if listed is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in listed())
