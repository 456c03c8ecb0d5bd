"""The event loop of the blocking SDK, and Ctrl-C at any moment."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from aenv.sdk.blocking import LoopThread
from tests.waiting import PATIENCE


def test_ctrl_c_before_this_thread_waits_cancels_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the work goes on without an owner, and whoever closes it waits for its end."""
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    schedule = asyncio.run_coroutine_threadsafe

    def interrupted(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
        schedule(coroutine, loop)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            LoopThread.run(work())
    assert ended.wait(PATIENCE)
    assert LoopThread.run(asyncio.sleep(0, "runs on")) == "runs on"
