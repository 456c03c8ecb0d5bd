"""Keep what is cached on disk within the user's budget: what was not used for longest is removed first."""

from __future__ import annotations

import asyncio

from aenv import config
from aenv.engines import package_layers
from aenv.images import base_systems, layered_images
from aenv.project import fetch
from aenv.schema import quantities
from aenv.storage.cache_folders import RECENT_SECONDS, CacheFolder, Pruned, prune
from aenv.tracing.logging import getLogger

log = getLogger("cache")

FIRST_SECONDS = 60.0
"""Seconds from the start of a platform to the first check: it does not slow down the first instances."""
CHECK_SECONDS = 3600.0
"""Seconds between checks."""


def platform_caches() -> list[CacheFolder]:
    """Return the caches that instances are made from."""
    return [package_layers.cache(), fetch.cache(config.cache_folder()), layered_images.cache(), base_systems.cache()]


def enforce_budget(budget: str | int) -> Pruned:
    """Remove what was not used for longest until the caches are within the budget; 0: no limit.

    What was used within the last hour, or is in use, stays.
    """
    limit = None if budget in (0, "0") else quantities.size(budget)
    if limit is None:
        return Pruned((), 0)
    done = prune(platform_caches(), budget=limit, unused_seconds=RECENT_SECONDS)
    if done.removed:
        log.info("removed %d cached entries, %d MB, to stay within %s", len(done.removed), done.bytes >> 20, budget)
    return done


async def keep_within_budget() -> None:
    """Check the caches soon and then every hour, until cancelled."""
    wait = FIRST_SECONDS
    while True:
        await asyncio.sleep(wait)
        wait = CHECK_SECONDS
        try:
            await asyncio.to_thread(enforce_budget, config.load().cache_budget)
        except Exception:
            log.exception("checking the size of caches failed")
