"""What a function will have returned: a coroutine, which agents take as it is for their instructions.

Code is in use that gives an agent the call itself: ``Agent(instructions=env.call_function("prompt"))``. Agents ask a
callable for their instructions, with two arguments, and before every turn; so this is one, and it calls once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any


class Answer(Coroutine[Any, Any, Any]):
    """Await it, make a task of it, or hand it on."""

    __slots__ = ("_call", "_task")

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._call = call
        self._task: asyncio.Task[Any] | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._call.__await__()

    async def __call__(self, context: object, agent: object) -> Any:
        """The same answer as often as it is asked for."""
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
