"""Durations of the phases of a create."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from aenv.platform.operations.metrics import Metrics
from aenv.tracing import spans

Phase = Literal["queue", "source", "record", "engine"]


@contextmanager
def phase(metrics: Metrics, name: Phase) -> Iterator[None]:
    """Measure one phase, whether it succeeds or fails."""
    began = time.perf_counter()
    try:
        with spans.span(f"create: {name}"):
            yield
    finally:
        metrics.observe("create_phase_duration_ms", (time.perf_counter() - began) * 1000, phase=name)
