"""One bash process that runs commands one after another, and says when each is done.

Commands come to it through a pipe, one `eval` each, and go on to see what earlier ones left: folder, variables,
functions, jobs. What a command prints, stdout and stderr alike, comes back through one pipe, so it is in order. That
it is done, and with which status, comes through another one, so no output can look like it, and there is nothing to
poll for: by then all that the command printed is in the first pipe.

The shell is an interactive one, as only such a one, when interrupted, gives up the whole command and stays. Its
terminal carries the interruption and nothing else: commands read from /dev/null, so those that wait for input get its
end instead.
"""

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import struct
import termios
from collections.abc import Callable

from fds import settled, write_all
from output import Bounded
from spawn import spawn_bash

CHUNK = 1 << 16
PIPE_SIZE = 1 << 20
HANG_UP_SECONDS = 0.5
TERMINAL_TEXT = 4096  # bytes kept of what a command writes to /dev/tty

OUT, STATUS_OUT = 200, 201
"""The shell's own descriptors for output and status; commands do not get to see them."""
SETUP = b"PS1= PS2=; \\builtin set +o history +H; __aenv_last() { \\builtin return $1; }\n"
RUN = "{last}\\builtin eval {command} </dev/null >&{out} 2>&1 {out}>&- {status}>&-\n"
STATUS = '\\builtin printf "%s %s\\n" {number} "$?" >&{status}\n'
STEPS = (*5 * ((signal.SIGINT, 0.2),), (signal.SIGTERM, 1.0), (signal.SIGKILL, 0.5), (signal.SIGKILL, 0.5))
"""What a command that takes too long is told, and for how many seconds each may take effect.

Several interrupts: in a loop of brief programs, one may reach a program that has ended just now, and nobody else.
"""


class Bash:
    """A running bash. It belongs to the event loop that it was made on."""

    def __init__(self, folder: str, environment: dict[str, str], limit: int) -> None:
        self._limit = limit
        self._output = Bounded(limit)
        self._terminal_text = b""
        self._number = 0
        self._last = 0
        self._done: asyncio.Future[int] | None = None
        self.exit_code: int | None = None
        """None while it runs."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it has ended."""
        self._open(folder, environment)

    def _open(self, folder: str, environment: dict[str, str]) -> None:
        self._terminal, self._slave = os.openpty()
        _no_echo(self._slave)
        commands, self._commands = os.pipe()
        self._out, out = os.pipe()
        self._status, status = os.pipe()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        descriptors = {0: commands, 1: nowhere, 2: nowhere, OUT: out, STATUS_OUT: status}
        try:
            self._process = spawn_bash(self._slave, folder, environment, descriptors=descriptors, options="--noediting")
        except RuntimeError:
            self.close()
            raise
        finally:
            for fd in {*descriptors.values()}:
                os.close(fd)
        self._ended = self._process.ended
        for fd in (self._terminal, self._commands, self._out, self._status):
            os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # more than this user may have; it is only faster
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self._loop = asyncio.get_running_loop()
        for fd, heard in self._sources():
            self._loop.add_reader(fd, heard)
        os.write(self._commands, SETUP)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def folder(self) -> str | None:
        """Where it is; None when that cannot be found out any more."""
        try:
            return os.readlink(f"/proc/{self.pid}/cwd")
        except OSError:
            return None

    async def begin(self, command: str) -> "asyncio.Future[int]":
        """Have it run a command; the exit status to come. The one before must be done."""
        self._number += 1
        self._terminal_text = b""
        done = self._done = self._loop.create_future()
        last = f"__aenv_last {self._last} || " if self._last else ""
        quoted = "'" + command.replace("'", "'\\''") + "'"
        text = (RUN.format(last=last, command=quoted, out=OUT, status=STATUS_OUT) + self._status_line()).encode()
        if len(text) <= select.PIPE_BUF:  # the pipe is empty: all that was written before has been read
            with contextlib.suppress(BrokenPipeError):  # it ends just now, and says so itself
                os.write(self._commands, text)
        else:
            writing = asyncio.create_task(write_all(self._commands, text))
            await asyncio.wait([writing, self.gone], return_when=asyncio.FIRST_COMPLETED)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        return done

    async def interrupt(self, done: "asyncio.Future[int]") -> None:
        """End the command that runs, with more and more force; in the end the shell with it."""
        for number, seconds in STEPS:
            self._signal(number)
            # Who is interrupted between a command and its status would never give it.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._commands, self._status_line().encode())
            if await settled(done, seconds):
                return
        await self.end()

    def take(self) -> str:
        """What was printed since the last time, by commands in the background too."""
        output, self._output = self._output, Bounded(self._limit)
        return output.text()

    def take_terminal_text(self) -> str:
        """The end of what was written to the terminal itself: where programs ask for passwords."""
        text, self._terminal_text = self._terminal_text, b""
        return text.decode(errors="replace").strip()

    async def end(self) -> None:
        """End it, and its jobs."""
        if self.exit_code is None:
            self._process.hang_up()
            if not await settled(self.gone, HANG_UP_SECONDS):
                self._process.kill()
            await self.gone
            await self._process.hang_up_rest()

    def close(self) -> None:
        """Let go of what has ended."""
        for name in ("_terminal", "_slave", "_commands", "_out", "_status", "_ended"):
            fd = self.__dict__.pop(name, None)
            if fd is not None:
                os.close(fd)

    def _status_line(self) -> str:
        return STATUS.format(number=self._number, status=STATUS_OUT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError, OSError):
            os.killpg(os.tcgetpgrp(self._terminal), number)

    # --- what the loop calls

    def _sources(self) -> tuple[tuple[int, Callable[[], None]], ...]:
        return (
            (self._out, self._on_output),
            (self._status, self._on_status),
            (self._terminal, self._on_terminal),
            (self._ended, self._on_end),
        )

    def _on_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._out, CHUNK)
            self._output.add(data)
            if not data:
                self._loop.remove_reader(self._out)

    def _on_status(self) -> None:
        data = os.read(self._status, CHUNK)
        if not data:
            self._loop.remove_reader(self._status)
        for line in data.splitlines():
            number, _, status = line.partition(b" ")
            if int(number) == self._number and self._done is not None and not self._done.done():
                self._last = int(status)
                self._finish(self._last)

    def _on_terminal(self) -> None:
        self._terminal_text = (self._terminal_text + os.read(self._terminal, CHUNK))[-TERMINAL_TEXT:]

    def _on_end(self) -> None:
        self.exit_code = self._process.wait()
        for fd, _ in self._sources():
            self._loop.remove_reader(fd)
        self._finish(self.exit_code)
        self.gone.set_result(None)

    def _finish(self, status: int) -> None:
        if self._done is None or self._done.done():
            return
        # As much as there is now, and not until there is no more: a job in the background may print forever.
        left = struct.unpack("i", fcntl.ioctl(self._out, termios.FIONREAD, b"\0" * 4))[0]
        while left > 0:
            data = os.read(self._out, min(left, CHUNK))
            self._output.add(data)
            left -= len(data)
        self._done.set_result(status)


def _no_echo(terminal: int) -> None:
    flags = termios.tcgetattr(terminal)
    flags[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, flags)
