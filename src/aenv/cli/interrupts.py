"""Run a coroutine so that Ctrl-C always stops it."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` as `asyncio.run` does: the first Ctrl-C cancels it, the second one raises at once.

    `asyncio.run` can miss a signal while its loop waits: one that arrives just before the wait begins, or that the
    kernel gives to another thread, is handled only after the next event. Here every signal is an event.
    """

    async def woken() -> T:
        with _waking():
            return await work

    return asyncio.run(woken())


@contextmanager
def _waking() -> Iterator[None]:
    """Wake the running event loop at every signal that has a handler."""
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield
        return
    loop = asyncio.get_running_loop()
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, reader.recv, 4096)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)
