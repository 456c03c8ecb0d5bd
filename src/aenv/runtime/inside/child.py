"""A process that a caller starts in the instance, with pipes or on a terminal, driven by the event loop.

It is started as tools start programs (``subprocess``), so it has the rights of a tool's program and no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import termios
import threading
from collections import deque
from collections.abc import Iterator

from aenv.errors import InvalidArguments
from aenv.schema.inside import STDERR, STDOUT, Command

CHUNK = 1 << 16
HELD = 1 << 18
"""Unread output at which reading from the process pauses: it then waits in write()."""
LEFT_AT_END = 1 << 20
"""Limit for the output that is read after the process has ended: a program that it left behind may still write."""
GRACE = 1.0
"""Seconds between SIGHUP and SIGKILL for a process whose caller is gone."""
_TERMINAL_NUMBER = 0x80045430  # TIOCGPTN
_ON_TERMINAL = 'exec "$@" <>"$0" >&0 2>&0'
"""Opens the terminal in the new session, which makes it the controlling one. `preexec_fn` could do that as well, but is
unsafe in a process with threads."""


class Child:
    """A running process. Its output must be read to the end with `read`."""

    def __init__(self, command: Command) -> None:
        """Start it.

        Raises:
            OSError: it could not be started.
            InvalidArguments: it needs a terminal, and there is no shell to set one up.
        """
        self._loop = asyncio.get_running_loop()
        self._output: deque[tuple[int, bytes]] = deque()
        self._held = 0
        self._more: asyncio.Future[None] | None = None
        self._input = -1
        self._unsent = b""
        self._input_ready: asyncio.Future[None] | None = None
        self._streams: dict[int, int] = {}
        """Open file descriptors of its output, and the number of the stream."""
        self._paused = False
        self._terminal_end = -1
        self.exit_code: int | None = None
        self.timed_out = False
        self.process = self._start_on_terminal(command) if command.tty else self._start(command)
        self.pid = self.process.pid
        for fd in self._streams:
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._readable, fd)
        self._watch_exit()
        self._timer = self._loop.call_later(command.timeout, self._time_out) if command.timeout is not None else None

    # --- starting

    def _start(self, command: Command) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command.command,
            shell=isinstance(command.command, str),
            cwd=command.cwd,
            env={**os.environ, **command.env},
            stdin=subprocess.PIPE if command.interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        self._streams = {os.dup(process.stdout.fileno()): STDOUT, os.dup(process.stderr.fileno()): STDERR}
        if process.stdin is not None:
            self._input = os.dup(process.stdin.fileno())
            os.set_blocking(self._input, False)
        for file in (process.stdin, process.stdout, process.stderr):
            if file is not None:
                file.close()
        return process

    def _start_on_terminal(self, command: Command) -> subprocess.Popen[bytes]:
        if not os.path.exists("/bin/sh"):
            raise InvalidArguments("this instance has no /bin/sh, so no program can run on a terminal")
        words = ["/bin/sh", "-c", command.command] if isinstance(command.command, str) else command.command
        master, self._terminal_end = os.openpty()
        try:
            number = struct.unpack("I", fcntl.ioctl(master, _TERMINAL_NUMBER, b"\0" * 4))[0]
            self._set_size(master, command.rows, command.columns)
            process = subprocess.Popen(
                ["/bin/sh", "-c", _ON_TERMINAL, f"/dev/pts/{number}", *words],
                cwd=command.cwd,
                env={**os.environ, **command.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            os.close(master)
            os.close(self._terminal_end)
            raise
        self._input, self._streams = master, {master: STDOUT}
        return process

    def _watch_exit(self) -> None:
        try:
            pidfd = os.pidfd_open(self.pid)
        except (OSError, AttributeError):  # an older kernel, or another system behind the same calls
            threading.Thread(target=self._wait, name=f"aenv-exec-{self.pid}", daemon=True).start()
            return

        def ended() -> None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._exited(self.process.wait())

        self._loop.add_reader(pidfd, ended)

    def _wait(self) -> None:
        code = self.process.wait()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._exited, code)

    # --- output

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next output and the number of its stream; None when the process has ended and all is read."""
        while not self._output:
            if self.exit_code is not None and not self._streams:
                return None
            self._more = self._loop.create_future()
            await self._more
        stream, data = self._output.popleft()
        self._held -= len(data)
        if self._paused and self._held < HELD // 2:
            self._paused = False
            for fd in self._streams:
                self._loop.add_reader(fd, self._readable, fd)
        return stream, data

    def _readable(self, fd: int) -> bool:
        """Read once. Returns whether there was something."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # EIO: nothing has the terminal open
            data = b""
        if not data:
            self._close_stream(fd)
            return False
        self._output.append((self._streams[fd], data))
        self._held += len(data)
        if self._held > HELD and not self._paused:
            self._paused = True
            for each in self._streams:
                self._loop.remove_reader(each)
        self._wake()
        return True

    def _close_stream(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        del self._streams[fd]
        if fd == self._input:
            self.close_input()
        else:
            os.close(fd)
        self._wake()

    def _exited(self, code: int) -> None:
        self.exit_code = code
        if self._timer is not None:
            self._timer.cancel()
        for fd in list(self._streams):
            until = self._held + LEFT_AT_END
            while fd in self._streams and self._held < until and self._readable(fd):
                pass
            if fd in self._streams:
                self._close_stream(fd)
        self.close_input()
        if self._terminal_end >= 0:
            os.close(self._terminal_end)
            self._terminal_end = -1
        self._wake()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    # --- input

    async def write(self, data: bytes) -> None:
        """Write to standard input; waits while the process does not read. Ignored where it is closed."""
        while self._unsent:  # another writer is ahead
            await self._until_sent()
        self._unsent = data
        self._feed()
        if self._unsent:
            await self._until_sent()

    async def _until_sent(self) -> None:
        if self._input_ready is None or self._input_ready.done():
            self._input_ready = self._loop.create_future()
        await asyncio.shield(self._input_ready)

    def _feed(self) -> None:
        while self._unsent and self._input >= 0:
            try:
                self._unsent = self._unsent[os.write(self._input, self._unsent[:CHUNK]) :]
            except BlockingIOError:
                self._loop.add_writer(self._input, self._feed)
                return
            except OSError:  # it reads no more
                break
        self._unsent = b""
        if self._input >= 0:
            self._loop.remove_writer(self._input)
        if self._input_ready is not None and not self._input_ready.done():
            self._input_ready.set_result(None)

    async def end_input(self) -> None:
        """Tell the process that there is no more input: end of file, or Ctrl-D on a terminal."""
        if self._input in self._streams:
            await self.write(b"\x04")
            return
        while self._unsent:
            await self._until_sent()
        self.close_input()

    def close_input(self) -> None:
        """Close standard input. A terminal stays open while its output is read."""
        fd = self._input
        if fd < 0 or fd in self._streams:
            return
        self._input = -1
        self._loop.remove_writer(fd)
        os.close(fd)
        self._feed()

    # --- control

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal; its programs get SIGWINCH."""
        if self._terminal_end >= 0:
            with contextlib.suppress(OSError):
                self._set_size(self._terminal_end, rows, columns)

    @staticmethod
    def _set_size(fd: int, rows: int, columns: int) -> None:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        """Send a signal to the process and those it started in its group; nothing happens once it has ended."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _time_out(self) -> None:
        self.timed_out = True
        self._kill_session(signal.SIGKILL)

    def abandon(self) -> None:
        """End the process and its session, since its caller is gone: SIGHUP, then SIGKILL after `GRACE` seconds."""
        if self.exit_code is None:
            self._kill_session(signal.SIGHUP, signal.SIGCONT)
            self._loop.call_later(GRACE, self._kill_session, signal.SIGKILL)
        for fd in list(self._streams):
            self._close_stream(fd)

    def _kill_session(self, *numbers: int) -> None:
        for pid in [*_session_of(self.pid), *([self.pid] if self.exit_code is None else [])]:
            for number in numbers:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)


def _session_of(leader: int) -> Iterator[int]:
    """Yield the processes of a session. A shell's jobs have groups of their own, so a group is not enough."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            # pid (name) state ppid pgrp session ...; the name may contain anything
            if int(file.read(4096).rpartition(b")")[2].split()[3]) == leader:
                yield int(name)
