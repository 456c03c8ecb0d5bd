"""A terminal for full-screen programs: keys go in, a screen comes out."""

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from typing import Any

from fds import write_all
from spawn import spawn_bash

from aenv import Screen, key_sequence

CHUNK = 1 << 16
QUIET = 0.1
"""Seconds without output after which a program is taken to have drawn what it had to."""
START_SECONDS = 10.0
HANG_UP_SECONDS = 0.5
NEVER = "\0"  # not on any screen
ON_TERMINAL = "<&9 >&9 2>&9 9>&-; export PS1='\\w\\$ '"


class Terminal:
    """A bash on a terminal of its own. It belongs to the event loop that it was made on."""

    def __init__(self, folder: str, environment: dict[str, str], rows: int, columns: int) -> None:
        self.screen = Screen(rows, columns)
        self.exit_code: int | None = None
        """None while it runs."""
        self._master, self._slave = os.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        try:
            self._process = spawn_bash(
                self._slave, folder, {**environment, "TERM": "xterm"}, descriptors={}, redirections=ON_TERMINAL
            )
        except RuntimeError:
            self._release()
            raise
        self._ended = self._process.ended
        os.set_blocking(self._master, False)
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._master, self._on_output)
        self._loop.add_reader(self._ended, self._on_end)

    async def ready(self) -> None:
        """Wait for the first prompt: what is typed before it would be shown twice."""
        deadline = self._loop.time() + START_SECONDS
        while not self.screen.column and self.exit_code is None and self._loop.time() < deadline:
            await self.settle("", QUIET)

    async def press(self, keys: list[str], literal: bool) -> None:
        """Press keys, one after another. Raises ProcessLookupError when nobody is there any more."""
        if self.exit_code is not None:
            raise ProcessLookupError(
                f"this terminal has ended with exit code {self.exit_code}; close it to start a new one"
            )
        text = "".join(key if literal else key_sequence(key, self.screen.application_keys) for key in keys)
        await write_all(self._master, text.encode())

    async def settle(self, wait_for: str, timeout: float) -> bool:
        """Wait until that text shows; without one, until nothing has been drawn for a moment. Whether it came to it."""
        deadline = self._loop.time() + timeout
        while not (wait_for and wait_for in self.screen.text()) and self.exit_code is None:
            left = deadline - self._loop.time()
            if left <= 0:
                return False
            news = self._news
            await asyncio.wait([news], timeout=left if wait_for else min(left, QUIET))
            if not news.done() and not wait_for:
                return left >= QUIET
            if news.done() and news is self._news:
                self._news = self._loop.create_future()
        return not wait_for or wait_for in self.screen.text()

    def show(self) -> dict[str, Any]:
        """What it shows now."""
        screen = self.screen
        shown = {"screen": screen.text(), "cursor": [screen.row, screen.column], "size": [screen.rows, screen.columns]}
        return shown if self.exit_code is None else {**shown, "exit_code": self.exit_code}

    async def close(self) -> None:
        """End it, and what runs in it."""
        if self.exit_code is None:
            self._process.hang_up()
            await self.settle(NEVER, HANG_UP_SECONDS)
            if self.exit_code is None:
                self._process.kill()
                self._on_end()
            await self._process.hang_up_rest()
        self._release()

    def _on_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.screen.feed(os.read(self._master, CHUNK))
        answers, self.screen.answers = self.screen.answers, ""
        if answers:
            with contextlib.suppress(BlockingIOError):  # who asks without listening needs no answer
                os.write(self._master, answers.encode())
        if not self._news.done():
            self._news.set_result(None)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._ended)
        self._loop.remove_reader(self._master)
        self._on_output()
        self.exit_code = self._process.wait()
        if not self._news.done():
            self._news.set_result(None)

    def _release(self) -> None:
        for name in ("_master", "_slave", "_ended"):
            fd = self.__dict__.pop(name, None)
            if fd is not None:
                os.close(fd)
