"""The two ways in which tests wait: for a condition, never for a time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

PATIENCE = float(os.environ.get("TEST_PATIENCE", "20"))
"""Seconds to wait for operations that take milliseconds; a slow machine needs more."""


def wait_while(check: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Poll while ``check`` returns a true value, which says what is still in the way; fail with ``what`` after that."""
    deadline = time.monotonic() + seconds
    while left := check():
        assert time.monotonic() < deadline, f"{what}: {left}"
        time.sleep(0.01)


async def wait_until(condition: Callable[[], object], seconds: float = 3 * PATIENCE) -> None:
    """Poll until ``condition`` returns a true value, without blocking the event loop."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
