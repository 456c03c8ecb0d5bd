"""Metrics of the platform in the Prometheus text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

PREFIX = "aenv_api_"
BUCKETS = tuple(float(2**power) for power in range(20))
"""Upper bounds of histogram buckets, in milliseconds."""
SERIES = 2000
"""Maximum number of label sets per metric; further ones are counted together as ``other``."""

HELP = {
    "requests_total": "Requests to the control plane.",
    "request_duration_ms": "Duration of requests to the control plane, in milliseconds.",
    "instance_operations_total": "Operations on instances.",
    "active_instances": "Instances that exist now.",
    "create_duration_ms": "Duration of instance creation, in milliseconds.",
    "create_phase_duration_ms": "Duration of each phase of creation (source, record, engine, queue), in milliseconds.",
    "mcp_requests_total": "Requests forwarded to instances.",
    "mcp_request_duration_ms": "Time until an instance starts its response, in milliseconds.",
    "instances_ended_total": "Instances that ended, by the way they ended.",
    "auto_cleanup_success_total": "Instances stopped because their time to live expired.",
    "auto_cleanup_failure_total": "Instances whose time to live expired and that could not be stopped.",
    "leaks_found_total": "Orphaned sandboxes that were found.",
    "sweep_duration_ms": "Duration of reconciling records with running sandboxes, in milliseconds.",
    "server_cpu_seconds": "CPU time used by the server itself, without instances.",
    "server_resident_bytes": "Resident memory of the server itself.",
    "server_open_files": "Open file descriptors of the server.",
    "server_uptime_seconds": "Time since the server started.",
    "queue_length": "Creates waiting for capacity.",
    "queue_wait_ms": "Queue wait of admitted creates, in milliseconds.",
    "queue_total": "Creates that left the queue, by outcome.",
    "places": "Capacity for instances: total, in use, and being created.",
    "services": "Services kept running.",
    "service_replicas": "Replicas of services: desired and available.",
    "service_restarts_total": "Replicas restarted after they ended.",
    "service_operations_total": "Operations on services.",
    "refused_total": "Refused requests, by error code.",
}

Labels = tuple[tuple[str, str], ...]
Gauge = Callable[[], list[tuple[dict[str, str], float]]]


@dataclass(slots=True)
class _Histogram:
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0


class Metrics:
    """Counters, histograms and gauges by name and labels."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, _Histogram]] = {}
        self._gauges: dict[str, Gauge] = {}

    def count(self, name: str, **labels: str) -> None:
        """Increment a counter."""
        series = self._counters.setdefault(name, {})
        key = _key(series, labels)
        series[key] = series.get(key, 0.0) + 1

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Record a measurement, in milliseconds."""
        series = self._histograms.setdefault(name, {})
        key = _key(series, labels)
        histogram = series.get(key)
        if histogram is None:
            histogram = series[key] = _Histogram()
        histogram.buckets[bisect_left(BUCKETS, value)] += 1
        histogram.total += value

    def gauge(self, name: str, read: Gauge) -> None:
        """Register a gauge, which is read on each scrape."""
        self._gauges[name] = read

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        lines: list[str] = []
        for name, counters in sorted(self._counters.items()):
            lines += _head(name, "counter")
            lines += [f"{PREFIX}{name}{_labels(key)} {value:.15g}" for key, value in counters.items()]
        for name, read in sorted(self._gauges.items()):
            lines += _head(name, "gauge")
            lines += [f"{PREFIX}{name}{_labels(tuple(labels.items()))} {value:.15g}" for labels, value in read()]
        for name, histograms in sorted(self._histograms.items()):
            lines += _head(name, "histogram")
            for key, histogram in histograms.items():
                lines += _histogram_lines(name, key, histogram)
        return "\n".join(lines) + "\n"


def _key(
    series: dict[Labels, object] | dict[Labels, float] | dict[Labels, _Histogram], labels: dict[str, str]
) -> Labels:
    """Return the label set, replaced by ``other`` beyond `SERIES`: unbounded labels would leak memory."""
    key = tuple(labels.items())
    if key not in series and len(series) >= SERIES:
        return tuple((name, "other") for name in labels)
    return key


def _head(name: str, kind: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {HELP[name]}", f"# TYPE {PREFIX}{name} {kind}"]


def _histogram_lines(name: str, key: Labels, histogram: _Histogram) -> list[str]:
    lines, sum_so_far = [], 0
    for bound, count in zip((*(f"{bound:g}" for bound in BUCKETS), "+Inf"), histogram.buckets, strict=True):
        sum_so_far += count
        lines.append(f"{PREFIX}{name}_bucket{_labels((*key, ('le', bound)))} {sum_so_far}")
    lines.append(f"{PREFIX}{name}_sum{_labels(key)} {histogram.total:.15g}")
    lines.append(f"{PREFIX}{name}_count{_labels(key)} {sum_so_far}")
    return lines


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
