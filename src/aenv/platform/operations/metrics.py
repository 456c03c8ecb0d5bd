"""What the platform counts, as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

PREFIX = "aenv_api_"
BUCKETS = tuple(float(2**power) for power in range(20))
"""Milliseconds."""
SERIES = 2000
"""Sets of labels of one metric; those beyond are counted together."""

HELP = {
    "requests_total": "Requests to the control plane.",
    "request_duration_ms": "How long requests to the control plane took.",
    "instance_operations_total": "What was done with instances.",
    "active_instances": "Instances that are there.",
    "create_duration_ms": "How long an instance took to be made.",
    "create_phase_duration_ms": "How long each part of that took: source, record, engine, and queue where one waits.",
    "mcp_requests_total": "Requests that were passed on to instances.",
    "mcp_request_duration_ms": "How long instances took to begin their answers.",
    "instances_ended_total": "Instances that are there no more, by how they ended.",
    "auto_cleanup_success_total": "Instances that their time to live has ended.",
    "auto_cleanup_failure_total": "Instances that could not be ended by it.",
    "leaks_found_total": "Sandboxes that belonged to nobody.",
    "sweep_duration_ms": "How long it took to compare what there should be with what there is.",
    "server_cpu_seconds": "CPU that the server itself has used; instances are not in it.",
    "server_resident_bytes": "Memory of the server itself.",
    "server_open_files": "Files and connections that the server has open.",
    "server_uptime_seconds": "For how long it has been there.",
    "queue_length": "Instances that wait for a place.",
    "queue_wait_ms": "How long those waited that were let in.",
    "queue_total": "How waiting for a place ended.",
    "places": "Instances that there is room for, that are there, and that are being made.",
    "services": "Services that are kept running.",
    "service_replicas": "Replicas of services: wanted, and available.",
    "service_restarts_total": "Replicas that were started again after they had ended.",
    "service_operations_total": "What was done with services.",
    "refused_total": "Requests that were refused, by the error's code.",
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
        """One more."""
        series = self._counters.setdefault(name, {})
        key = _key(series, labels)
        series[key] = series.get(key, 0.0) + 1

    def observe(self, name: str, value: float, **labels: str) -> None:
        """One measurement, in milliseconds."""
        series = self._histograms.setdefault(name, {})
        key = _key(series, labels)
        histogram = series.get(key)
        if histogram is None:
            histogram = series[key] = _Histogram()
        histogram.buckets[bisect_left(BUCKETS, value)] += 1
        histogram.total += value

    def gauge(self, name: str, read: Gauge) -> None:
        """Something that is read when somebody asks."""
        self._gauges[name] = read

    def text(self) -> str:
        """All of it, in Prometheus' text format."""
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
    """A metric without an end to its labels would be a leak."""
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
