"""The time limit of a reward, of which agent code may be a part.

A reward that is late is absent: the caller has given up. Where agent code has used up the time, the agent would have
voided its own grade. So the caller says how long it waits, and shortly before that the reward ends as one that found
its state destroyed: the caller gets the environment's failure reward.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from aenv.authoring.agent_time import AgentTime, reward_under_way
from aenv.authoring.call import Call
from aenv.errors import StateDestroyed

MARGIN = 2.0
"""Seconds before the caller gives up, for the answer to arrive; a third of a time limit of less than six seconds."""
INTERVAL = 0.05
"""Once the time is over: seconds between two checks whether agent code has had half of it."""


def parse_seconds(text: str | None) -> float | None:
    """Parse the number of seconds that the caller waits; None for anything but a positive number."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None


async def within(seconds: float, call: Call, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of ``work``, the reward that ``call`` is about.

    Raises:
        StateDestroyed: agent code has used up the time. The author's code alone never causes that.
    """
    loop = asyncio.get_running_loop()
    allowed = seconds - min(MARGIN, seconds / 3)
    spent = call.agent_time = AgentTime()
    call.deadline = time.monotonic() + allowed
    over = False
    timer: asyncio.TimerHandle
    task = loop.create_task(work)  # the server runs the first step of a request in no task, so no asyncio.timeout

    def check() -> None:
        nonlocal timer, over
        over = spent.is_half_of(allowed)
        if over:
            task.cancel()
        else:
            timer = loop.call_later(INTERVAL, check)

    timer = loop.call_later(allowed, check)
    try:
        with reward_under_way(spent):
            return await task
    except asyncio.CancelledError:
        if not over:
            raise
        raise StateDestroyed(f"code of the agent has used up the {seconds:g} s that the reward had") from None
    finally:
        timer.cancel()
