"""Environments for `environment_factory` of TRL's GRPOTrainer: a class made for one environment, its tools as methods.

TRL finds tools by inspecting the class, reads their signatures and docstrings, keeps the objects in a pool, and resets
them. It imports nothing from here, so this module needs no package of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any, Literal

from aenv.adapters.trainers.episodes import EpisodeFailed, EpisodeSource, OpenEpisode, at_home
from aenv.errors import AEnvError, InvalidUse
from aenv.sdk.blocking import LoopThread

_TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict, "null": None,
}  # fmt: skip
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
    schema: dict[str, Any] = definition.get("parameters") or {}
    required = schema.get("required") or ()
    parameters, lines = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)], []
    hints: dict[str, Any] = {}
    listed: dict[str, Any] = schema.get("properties") or {}
    for name, about in sorted(listed.items(), key=lambda item: item[0] not in required):
        default = inspect.Parameter.empty if name in required else about.get("default")
        hints[name] = _hint(about, name in required)
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        )
        lines.append(f"    {name}: {' '.join(str(about.get('description') or name).split())}")

    async def call(self: _TrlEpisode, **arguments: Any) -> str:
        return await at_home(self._call(tool, arguments))

    call.__name__ = call.__qualname__ = f"{tool}_" if tool in _TAKEN else tool.replace("-", "_").lstrip("_")
    call.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    call.__annotations__ = {**hints, "return": str}
    about = " ".join(str(definition.get("description") or tool).split())
    call.__doc__ = "\n".join([about, *(["", "Args:", *lines] if lines else [])])
    return call


def _hint(about: dict[str, Any], is_required: bool) -> Any:
    """Return the type hint of a parameter, from which TRL makes a schema again."""
    if about.get("enum"):
        hint: Any = Literal[tuple(about["enum"])]
    elif about.get("anyOf"):
        hint = _TYPES.get(next((part.get("type") for part in about["anyOf"] if part.get("type") != "null"), ""), Any)
    else:
        hint = _TYPES.get(about.get("type", ""), Any)
    return hint if is_required or hint is Any or about.get("default") is not None else hint | None


def _has_text(prompt: Any) -> bool:
    return any(message.get("content") for message in prompt) if isinstance(prompt, list) else bool(prompt)


def _class_name(environment: str) -> str:
    name = environment.rstrip("/").rpartition("/")[2].partition("@")[0]
    return "".join(part.capitalize() for part in name.replace("-", "_").split("_")) or "Environment"
