"""The return value of ``call_function``: a coroutine that an agent also accepts as its instructions.

Existing code passes the call itself to an agent: ``Agent(instructions=env.call_function("prompt"))``. The OpenAI Agents
SDK calls its instructions with two arguments before every turn. So the coroutine is callable too, and runs only once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any


class Answer(Coroutine[Any, Any, Any]):
    """A pending call of a function: await it, make it a task, or pass it on."""

    __slots__ = ("_call", "_task")

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._call = call
        self._task: asyncio.Task[Any] | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._call.__await__()

    async def __call__(self, context: object, agent: object) -> Any:
        """Run the call on the first invocation; return its result on every one."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._call)
        return await asyncio.shield(self._task)

    def send(self, value: Any) -> Any:
        return self._call.send(value)

    def throw(
        self, kind: Any, value: BaseException | object | None = None, traceback: TracebackType | None = None
    ) -> Any:
        return self._call.throw(kind, value, traceback) if value or traceback else self._call.throw(kind)

    def close(self) -> None:
        self._call.close()
