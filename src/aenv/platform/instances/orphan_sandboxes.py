"""Sandboxes that belong to nobody: looked for now and then, and ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from aenv.engines.base import Engine
from aenv.platform.operations.metrics import Metrics
from aenv.tracing.logging import getLogger

log = getLogger("instances")

SECONDS = 120.0
"""A sandbox that belongs to nobody for so long is a leak. One that is being made belongs to nobody yet."""


class OrphanReaper:
    """Sandboxes of an engine that no instance has."""

    def __init__(self, engine: Engine, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._since: dict[str, float] = {}

    async def end(self, known: set[str]) -> None:
        """Those that have been some for too long."""
        now = self._clock()
        since: dict[str, float] = {}
        async for ref in self._engine.running():
            if ref.id in known:
                continue
            since[ref.id] = self._since.get(ref.id, now)
            if now - since[ref.id] > SECONDS:
                log.warning("sandbox %s belongs to nobody: it is ended", ref.id)
                self._metrics.count("leaks_found_total")
                await self._engine.stop(ref)
        self._since = since
