"""Shells that agents know by name: each runs one command at a time, and comes back when it was lost."""

import asyncio
import os
from typing import Any

from bash import Bash

TIMED_OUT = 124
"""The status of a command that took too long, as timeout(1) has it."""
SHOWN = 200  # characters of what a command asked the terminal


class Shell:
    """A bash, and the next one when that has ended."""

    def __init__(self, folder: str, environment: dict[str, str], limit: int) -> None:
        self._folder = folder
        self._home = folder
        self._environment = environment
        self._limit = limit
        self._bash: Bash | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        self._cleaning: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process, if one runs."""
        return self._bash.pid if self._bash is not None and self._bash.exit_code is None else None

    @property
    def folder(self) -> str:
        """Where its next command runs."""
        return (self._bash and self._bash.folder) or self._folder

    @property
    def busy(self) -> bool:
        """Whether a command runs."""
        return self._turn.locked()

    async def run(self, command: str, timeout: float) -> dict[str, Any]:
        """Run a command when it is its turn; `timeout` counts from then."""
        async with self._turn:
            if self._closed:
                raise RuntimeError("this shell was closed before it was this command's turn")
            if self._cleaning is not None:
                await asyncio.wait([self._cleaning])
            bash, notes = self._alive()
            done = await self._begin(bash, command)
            try:
                await asyncio.wait([done], timeout=timeout)
                in_time = done.done()
                if not in_time:
                    self._folder = bash.folder or self._folder
                    await bash.interrupt(done)
            except asyncio.CancelledError:  # nobody waits for it any more; the shell must stay of use
                self._cleaning = asyncio.create_task(self._clean(bash, done))
                raise
            if not in_time:
                notes.append(f"timed out after {timeout:g} s and was interrupted")
                asked = bash.take_terminal_text()
                if asked:
                    notes.append(f"it had written to the terminal: {asked[-SHOWN:]!r}")
            result = {"output": [bash.take(), in_time], "returncode": done.result() if in_time else TIMED_OUT}
            if bash.exit_code is not None:
                notes.append("the shell has ended; the next command starts a new one in the same folder")
                self._drop()
            else:
                self._folder = bash.folder or self._folder
            return {**result, "note": "; ".join(notes)} if notes else result

    async def ended(self) -> None:
        """Return when its bash has ended, if one runs."""
        if self._bash is not None:
            await asyncio.wait([self._bash.gone])

    async def close(self) -> None:
        """End it, and the command that it runs."""
        self._closed = True
        if self._bash is not None:
            await self._bash.end()
        async with self._turn:
            if self._cleaning is not None:
                await asyncio.wait([self._cleaning])
            self._drop()

    def _alive(self) -> tuple[Bash, list[str]]:
        notes = []
        if self._bash is not None and self._bash.exit_code is not None:
            notes.append("the shell had ended; this is a new one")
            self._drop()
        if self._bash is None:
            folder = self._folder if os.path.isdir(self._folder) else self._home
            self._bash = Bash(folder, self._environment, self._limit)
        return self._bash, notes

    def _drop(self) -> None:
        if self._bash is not None:
            self._bash.close()
            self._bash = None

    async def _begin(self, bash: Bash, command: str) -> "asyncio.Future[int]":
        try:
            return await bash.begin(command)
        except asyncio.CancelledError:  # it may have got the half of it
            self._cleaning = asyncio.create_task(bash.end())
            raise

    async def _clean(self, bash: Bash, done: "asyncio.Future[int]") -> None:
        await bash.interrupt(done)
        bash.take()
