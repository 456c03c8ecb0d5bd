"""The processes that callers have started in this instance, and the output that is kept of detached ones."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from itertools import count

from aenv.errors import Conflict, NotFound
from aenv.runtime.inside.child import Child
from aenv.schema.inside import Command, ProcessInfo

MOST = 64
"""Limit for processes that run at a time."""
ENDED = 64
"""Detached processes that are kept after their end."""
KEPT = 1 << 18
"""Bytes that are kept of a detached process's output: the last ones."""


class StartedProcess:
    """A process and its number."""

    def __init__(self, number: int, command: Command, child: Child) -> None:
        self.child = child
        self.output: KeptOutput | None = None
        self.feeding: asyncio.Task[None] | None = None
        """Writes the input that came with the command."""
        self._about = {
            "id": number,
            "pid": child.pid,
            "command": command.command,
            "started_at": time.time(),
            "detached": command.detach,
        }

    def info(self) -> ProcessInfo:
        """Return its description."""
        child = self.child
        return ProcessInfo.model_validate({**self._about, "exit_code": child.exit_code, "timed_out": child.timed_out})


class KeptOutput:
    """The last output of a detached process. It never makes the process wait: what readers miss is dropped."""

    def __init__(self, child: Child) -> None:
        self._chunks: deque[tuple[int, bytes]] = deque()
        self._held = 0
        self._first = 0
        """Number of the first chunk that is kept."""
        self._changed = asyncio.Event()
        self.ended = asyncio.Event()
        self._task = asyncio.ensure_future(self._collect(child))

    async def _collect(self, child: Child) -> None:
        while (chunk := await child.read()) is not None:
            self._chunks.append(chunk)
            self._held += len(chunk[1])
            while self._held > KEPT:
                self._held -= len(self._chunks.popleft()[1])
                self._first += 1
            self._notify()
        self.ended.set()
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def read(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield what is kept, and then what comes, until the process has ended."""
        following = self._first
        while True:
            following = max(following, self._first)
            if following < self._first + len(self._chunks):
                yield self._chunks[following - self._first]
                following += 1
            elif self.ended.is_set():
                return
            else:
                await self._changed.wait()


class Processes:
    """Table of the processes that callers have started."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._known: dict[int, StartedProcess] = {}

    def start(self, command: Command) -> StartedProcess:
        """Start a process.

        Raises:
            OSError: it could not be started.
            Conflict: too many are running.
        """
        running = sum(each.child.exit_code is None for each in self._known.values())
        if running >= MOST:
            raise Conflict(f"{running} processes that callers started are still running; end some of them first")
        number = next(self._numbers)
        started = self._known[number] = StartedProcess(number, command, Child(command))
        if command.detach:
            started.output = KeptOutput(started.child)
            self._forget_ended()
        return started

    def _forget_ended(self) -> None:
        ended = [number for number, each in self._known.items() if each.child.exit_code is not None]
        for number in ended[: max(0, len(ended) - ENDED)]:
            del self._known[number]

    def remove(self, started: StartedProcess) -> None:
        """Forget a process whose caller has seen its end, or is gone."""
        self._known.pop(started.info().id, None)

    def get(self, text: str) -> StartedProcess:
        """Return the process with this number.

        Raises:
            NotFound: there is none.
        """
        found = self._known.get(int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else None
        if found is None:
            raise NotFound(
                f"there is no process {text[:20]}; list them with env.processes() or aenv instance processes"
            )
        return found

    def list(self) -> list[ProcessInfo]:
        """Return all processes, the oldest first."""
        return [each.info() for each in self._known.values()]
