"""Metrics of the server process: CPU time, memory, open files, uptime."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from aenv.platform.operations.metrics import Gauge, Metrics


def watch(metrics: Metrics) -> None:
    """Register the gauges. Imports ``prometheus_client`` now: the first scrape would hold up the event loop."""
    import prometheus_client  # noqa: F401

    began = time.monotonic()
    metrics.gauge("server_cpu_seconds", _one(time.process_time))
    metrics.gauge("server_resident_bytes", _one(_resident))
    metrics.gauge("server_open_files", _one(lambda: len(os.listdir("/proc/self/fd"))))
    metrics.gauge("server_uptime_seconds", _one(lambda: time.monotonic() - began))


def _one(read: Callable[[], float]) -> Gauge:
    return lambda: [({}, read())]


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
