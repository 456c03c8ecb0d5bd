"""Renew the time to live of an instance while its episode runs.

An agent without a deadline, or with a task's own long one, may need an instance for longer than it was created for. If
the runner dies, nobody renews, and the time to live ends the instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aenv.errors import AEnvError, UsageError
from aenv.rollout.world import World
from aenv.sdk.environment import Environment

RENEW_SECONDS = 300.0
"""Seconds between two renewals; far less than any time to live that a rollout sets."""


@asynccontextmanager
async def kept_alive(world: World) -> AsyncIterator[None]:
    """Keep the instance from reaching its time to live until the end of the block."""
    if not isinstance(world, Environment):
        yield
        return
    renewing = asyncio.create_task(_renew(world))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})


async def _renew(env: Environment) -> None:
    with suppress(UsageError):  # a server that was started by hand has no time to live
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await _tried(env)


async def _tried(env: Environment) -> None:
    """Renew once. A failure shows in the next call of the episode, if it lasts."""
    try:
        await env.renew()
    except UsageError:
        raise
    except AEnvError:
        return
