"""Reap orphans: sandboxes of an engine that belong to no instance."""

from __future__ import annotations

import time
from collections.abc import Callable

from aenv.engines.base import Engine
from aenv.platform.operations.metrics import Metrics
from aenv.tracing.logging import getLogger

log = getLogger("instances")

GRACE_SECONDS = 120.0
"""Stop a sandbox that has had no owner for this long. Shorter times are normal: one being created has none yet."""


class OrphanReaper:
    """Finds and stops orphaned sandboxes."""

    def __init__(self, engine: Engine, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._orphaned_since: dict[str, float] = {}

    async def reap(self, owned: set[str]) -> None:
        """Stop sandboxes that have had no owner for more than `GRACE_SECONDS`.

        ``owned``: ids of the sandboxes that have one.
        """
        now = self._clock()
        since: dict[str, float] = {}
        async for ref in self._engine.running():
            if ref.id in owned:
                continue
            since[ref.id] = self._orphaned_since.get(ref.id, now)
            if now - since[ref.id] > GRACE_SECONDS:
                log.warning("stopping orphaned sandbox %s", ref.id)
                self._metrics.count("leaks_found_total")
                await self._engine.stop(ref)
        self._orphaned_since = since
