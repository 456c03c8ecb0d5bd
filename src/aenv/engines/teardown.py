"""Teardown that is never cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def finish(work: Coroutine[Any, Any, None]) -> None:
    """Wait for teardown even if this task is cancelled again meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
