"""Connect this machine's terminal or pipes to a process in an instance."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aenv.cli.inside import text
from aenv.cli.output import note

if TYPE_CHECKING:
    from aenv.sdk.inside.remote_process import Process

CHUNK = 1 << 16
ESCAPE, DISCONNECT = b"~", b"."
"""At the start of a line, these two keys end the session, as in ssh: Ctrl-C and Ctrl-D belong to the program there."""


ROWS, COLUMNS = 24, 80
"""Size to assume of a terminal that does not know its own, such as a serial line or one of a CI system: it says 0."""


def size() -> tuple[int, int]:
    """Return rows and columns of this terminal."""
    for stream in (sys.__stdin__, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            columns, rows = os.get_terminal_size(stream.fileno())  # type: ignore[union-attr]
            return rows or ROWS, columns or COLUMNS
    columns, rows = shutil.get_terminal_size()  # it would prefer COLUMNS and LINES, which may be another terminal's
    return rows, columns


@contextlib.contextmanager
def raw_mode() -> Iterator[None]:
    """Pass every key on unchanged, and restore the terminal at the end."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


async def run_on_terminal(process: Process) -> int:
    """Show a process on this terminal until it ends; return its exit code."""
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    assert main is not None
    resizing: set[asyncio.Task[None]] = set()

    def resize() -> None:
        task = asyncio.ensure_future(process.resize(*size()))
        resizing.add(task)
        task.add_done_callback(resizing.discard)

    loop.add_signal_handler(signal.SIGWINCH, resize)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, main.cancel)
    with raw_mode():
        _send_stdin(process, loop, Keys(lambda: loop.call_soon_threadsafe(main.cancel)))
        try:
            while (chunk := await process.read()) is not None:
                _write_all(sys.stdout.fileno(), chunk.data)
        except asyncio.CancelledError:
            _write_all(sys.stdout.fileno(), b"\r\nDisconnected.\r\n")
            await process.close()
            return 1
    return exit_code(process)


async def run_on_pipes(process: Process, *, stdin: bool) -> int:
    """Show the output of a process until it ends; return its exit code. Ctrl-C interrupts it, a second one ends it."""
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    assert main is not None
    signalling: list[asyncio.Task[None]] = []

    def interrupt() -> None:
        if signalling:
            main.cancel()
            return
        note("Interrupting it; press Ctrl-C again to end it.")
        signalling.append(asyncio.ensure_future(process.kill("INT")))

    loop.add_signal_handler(signal.SIGINT, interrupt)
    if stdin:
        _send_stdin(process, loop, None)
    try:
        while (chunk := await process.read()) is not None:
            text.write(sys.stdout if chunk.stream == "stdout" else sys.stderr, chunk.data, chunk.text)
    except asyncio.CancelledError:
        await process.close()
        return 130
    return exit_code(process)


def exit_code(process: Process) -> int:
    """Return the exit code as a shell reports it: 128 and the signal's number for a process that was killed."""
    code = process.exit_code
    assert code is not None
    return code if code >= 0 else 128 - code


class Keys:
    """Recognises the keys that end a session in what is typed."""

    def __init__(self, disconnect: object) -> None:
        self._disconnect = disconnect
        self._at_start = True
        self._held = b""

    def filter(self, typed: bytes) -> bytes:
        """Return what to send of typed keys."""
        out = b""
        for key in (typed[index : index + 1] for index in range(len(typed))):
            if self._held:
                if key == DISCONNECT:
                    self._disconnect()  # type: ignore[operator]
                    return out
                out += self._held if key != ESCAPE else b""
                self._held = b""
            elif self._at_start and key == ESCAPE:
                self._held = key
                continue
            out += key
            self._at_start = key in (b"\r", b"\n", b"\x03", b"\x04")
        return out


def _send_stdin(process: Process, loop: asyncio.AbstractEventLoop, keys: Keys | None) -> None:
    """Send this process's standard input, in a thread: a file or a pipe cannot be awaited everywhere."""

    def pump() -> None:
        with contextlib.suppress(OSError, RuntimeError, asyncio.CancelledError):  # the session has ended
            while data := os.read(0, CHUNK):
                data = keys.filter(data) if keys is not None else data
                asyncio.run_coroutine_threadsafe(process.write(data), loop).result()
            asyncio.run_coroutine_threadsafe(process.close_stdin(), loop).result()

    threading.Thread(target=pump, name="aenv-stdin", daemon=True).start()


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            continue
