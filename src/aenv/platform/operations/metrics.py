"""Metrics of the platform.

Counting is on the path of every request, so it is a dictionary lookup here: a third of the time of
``prometheus_client``'s own counters (1.9 and 5.4 us). The library writes the exposition format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

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
    "instance_uptime_seconds": "Time since each running instance started.",
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
        from prometheus_client import CollectorRegistry, generate_latest  # slow to import; only scrapes need it

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its samples, as a collector of ``prometheus_client``."""
        for name, counters in sorted(self._counters.items()):
            metric = _metric(name, "counter")
            for key, value in counters.items():
                metric.add_sample(PREFIX + name, dict(key), value)
            yield metric
        for name, read in sorted(self._gauges.items()):
            metric = _metric(name, "gauge")
            for labels, value in read():
                metric.add_sample(PREFIX + name, labels, value)
            yield metric
        for name, histograms in sorted(self._histograms.items()):
            metric = _metric(name, "histogram")
            for key, histogram in histograms.items():
                _add_histogram(metric, PREFIX + name, dict(key), histogram)
            yield metric


def _key(
    series: dict[Labels, object] | dict[Labels, float] | dict[Labels, _Histogram], labels: dict[str, str]
) -> Labels:
    """Return the label set, replaced by ``other`` beyond `SERIES`: unbounded labels would leak memory."""
    key = tuple(labels.items())
    if key not in series and len(series) >= SERIES:
        return tuple((name, "other") for name in labels)
    return key


def _metric(name: str, kind: str) -> Metric:
    from prometheus_client import Metric

    return Metric((PREFIX + name).removesuffix("_total") if kind == "counter" else PREFIX + name, HELP[name], kind)


def _add_histogram(metric: Metric, name: str, labels: dict[str, str], histogram: _Histogram) -> None:
    cumulative = 0
    for bound, count in zip((*(f"{bound:g}" for bound in BUCKETS), "+Inf"), histogram.buckets, strict=True):
        cumulative += count
        metric.add_sample(f"{name}_bucket", labels | {"le": bound}, cumulative)
    metric.add_sample(f"{name}_sum", labels, histogram.total)
    metric.add_sample(f"{name}_count", labels, cumulative)
