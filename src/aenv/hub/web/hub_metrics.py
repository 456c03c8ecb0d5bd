"""Metrics of a hub: requests by route, their duration, and operations on environments."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of histogram buckets, in seconds."""
CONTENT_TYPE = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"


class HubMetrics:
    """Counts requests by their route, never by their path: a path has an unbounded number of values."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, str], int] = defaultdict(int)
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self._requests[method, route, str(status)] += 1
        place = method, route
        buckets = self._buckets.setdefault(place, [0] * (len(BUCKETS) + 1))
        buckets[bisect_left(BUCKETS, seconds)] += 1
        self._seconds[place] += seconds

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        from prometheus_client import CollectorRegistry, generate_latest  # slow to import; only scrapes need it

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its samples, as a collector of ``prometheus_client``."""
        from prometheus_client import Metric

        total = Metric("http_requests", "Requests to the hub, by route.", "counter")
        for (method, route, status), count in sorted(self._requests.items()):
            labels = {"method": method, "endpoint": route, "status": status}
            total.add_sample("http_requests_total", labels, count)
        yield total
        duration = Metric("http_request_duration_seconds", "Duration of requests to the hub, in seconds.", "histogram")
        for (method, route), buckets in sorted(self._buckets.items()):
            labels, cumulative = {"method": method, "endpoint": route}, 0
            for bound, count in zip((*(f"{bound:g}" for bound in BUCKETS), "+Inf"), buckets, strict=True):
                cumulative += count
                duration.add_sample("http_request_duration_seconds_bucket", labels | {"le": bound}, cumulative)
            seconds = self._seconds[method, route]
            duration.add_sample("http_request_duration_seconds_sum", labels, seconds)
            duration.add_sample("http_request_duration_seconds_count", labels, cumulative)
        yield duration
        health = Metric("service_health_status", "1 while the hub answers.", "gauge")
        health.add_sample("service_health_status", {}, 1)
        yield health
