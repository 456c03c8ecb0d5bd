"""Ctrl-C stops a command, whatever its event loop does at that moment."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from aenv.cli import interrupts
from tests.waiting import PATIENCE


def test_an_interrupt_that_another_thread_receives_stops_the_loop() -> None:
    """Like a signal just before the loop waits, it does not end the wait by itself."""

    missed: list[bool] = []

    def interrupt(loop: asyncio.AbstractEventLoop, stopped: threading.Event) -> None:
        time.sleep(0.005)  # by now the loop probably waits; the test passes in any case
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not stopped.wait(3 * PATIENCE):
            missed.append(True)
            loop.call_soon_threadsafe(lambda: None)

    async def wait() -> None:
        stopped = threading.Event()
        threading.Thread(target=interrupt, args=(asyncio.get_running_loop(), stopped)).start()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            interrupts.run(wait())
        assert not missed


def test_a_run_returns_its_result_and_restores_the_handling_of_signals() -> None:
    async def answer() -> int:
        return 42

    assert interrupts.run(answer()) == 42
    assert signal.set_wakeup_fd(-1) == -1
