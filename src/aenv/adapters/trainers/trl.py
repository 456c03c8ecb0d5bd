"""Environments for `environment_factory` of TRL's GRPOTrainer: a class made for one environment, its tools as methods.

TRL finds tools by inspecting the class, reads their signatures and docstrings, keeps the objects in a pool, and resets
them. It imports nothing from here, so this module needs no package of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aenv.adapters.trainers.episodes import EpisodeFailed, EpisodeSource, OpenEpisode, at_home
from aenv.adapters.trainers.tool_signatures import sign
from aenv.errors import AEnvError, InvalidUse
from aenv.sdk.blocking import LoopThread

_TAKEN = ("reset", "get_reward")


def environment_class(environment: str = "", *, name: str = "", **options: Any) -> type:
    """Return a class for ``environment_factory``, whose objects are episodes of an environment.

    An instance is opened once, to read the tools. ``reset(**row)`` begins an episode: of the task that the row names
    as ``task_id``, or describes, or else of a random one; it returns the instruction. TRL resets one object after
    another, so where the task has its instruction, the instance is started meanwhile. ``get_reward()`` ends the episode
    and grades it. If it cannot be graded for a reason that is not the agent's, the reward is None, and TRL leaves the
    completion out.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        name: Name of the class, under which TRL logs the reward.
        **options: Other arguments of `EpisodeSource`, such as ``tasks`` or ``limits``, and of `Environment`.

    Example:
        ```python
        Treasure = environment_class("./treasure")
        trainer = GRPOTrainer(model, environment_factory=Treasure, train_dataset=Dataset.from_list(task_rows(Treasure)))
        ```
    """
    source = EpisodeSource(environment, **options)
    tools, rows = LoopThread.run(_survey(source))
    members: dict[str, Any] = {"_source": source, "_rows": staticmethod(lambda: [dict(row) for row in rows])}
    for definition in tools:
        method = _method(definition["function"])
        members[method.__name__] = method
    made = type(name or _class_name(environment), (_TrlEpisode,), members)
    made.__module__ = __name__
    return made


def task_rows(made: type) -> list[dict[str, Any]]:
    """Return a row for each task of a class that `environment_class` made, for ``train_dataset``.

    It is no method of the class, as TRL takes those for tools.
    """
    found: list[dict[str, Any]] = made._rows()  # type: ignore[attr-defined]
    return found


async def _survey(source: EpisodeSource) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the tools, and a row for each task."""
    tasks = await source.tasks()
    episode = await source.open(tasks[0])
    await episode.cancel()
    empty = [{"role": "user", "content": ""}]  # TRL appends what reset returns
    return episode.tools, [{"prompt": empty, "task_id": task.id} for task in tasks]


class _TrlEpisode:
    """Base of the classes. Names with an underscore are no tools for TRL."""

    _source: EpisodeSource

    def __init__(self) -> None:
        self._opening: asyncio.Future[OpenEpisode] | None = None

    def reset(self, **row: Any) -> str:
        """Begin an episode, and return its instruction."""
        return LoopThread.run(self._begin(row))

    async def get_reward(self) -> float | None:
        """End the episode, and return its reward; None if there is none."""
        return await at_home(self._graded())

    async def _begin(self, row: dict[str, Any]) -> str:
        await self._drop()
        named = {name: value for name, value in row.items() if name in ("id", "task_id") and value is not None}
        described = {name: value for name, value in row.items() if name != "prompt" or _has_text(value)}
        task = await self._source.task(named or described or None)
        self._opening = asyncio.ensure_future(self._source.open(task))
        self._opening.add_done_callback(_seen)
        if task.instruction and task.user_profile is None:
            return task.instruction
        return (await asyncio.shield(self._opening)).instruction  # a function of the environment, or a user, makes it

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        if self._opening is None:
            raise InvalidUse("there is no episode; TRL calls reset() first")
        try:
            return (await (await asyncio.shield(self._opening)).call(tool, arguments)).text
        except AEnvError as error:
            return f"Error: {error.message}"  # the reward says what became of the episode

    async def _graded(self) -> float | None:
        opening, self._opening = self._opening, None
        if opening is None:
            return None
        try:
            episode = await asyncio.shield(opening)
        except EpisodeFailed:
            return None
        return (await episode.grade()).score

    async def _drop(self) -> None:
        """End the episode before, which was not graded."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        with contextlib.suppress(EpisodeFailed):
            await (await opening).cancel()


def _seen(opening: asyncio.Future[OpenEpisode]) -> None:
    """Mark the error of an opening as seen: the reward says so too."""
    if not opening.cancelled():
        opening.exception()


def _method(definition: dict[str, Any]) -> Any:
    """Return a method for a tool, with the signature and the docstring that TRL reads."""
    tool: str = definition["name"]

    async def call(self: _TrlEpisode, **arguments: Any) -> str:
        return await at_home(self._call(tool, arguments))

    call.__name__ = call.__qualname__ = f"{tool}_" if tool in _TAKEN else tool.replace("-", "_").lstrip("_")
    sign(call, definition.get("parameters") or {}, str(definition.get("description") or tool), is_method=True)
    return call


def _has_text(prompt: Any) -> bool:
    return any(message.get("content") for message in prompt) if isinstance(prompt, list) else bool(prompt)


def _class_name(environment: str) -> str:
    name = environment.rstrip("/").rpartition("/")[2].partition("@")[0]
    return "".join(part.capitalize() for part in name.replace("-", "_").split("_")) or "Environment"
