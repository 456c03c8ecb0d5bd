"""Circuit breaker: refuse calls to an unreachable instance, and probe it until it answers again."""

from __future__ import annotations

import time
from collections.abc import Callable

THRESHOLD = 5
"""Consecutive failures after which calls are refused."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two probes: exponential backoff."""


class CircuitBreaker:
    """Opens after ``threshold`` consecutive failures; then allows one probe per pause."""

    def __init__(self, threshold: int = THRESHOLD, clock: Callable[[], float] = time.monotonic) -> None:
        self._threshold = threshold
        self._clock = clock
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._probe_at = 0.0

    @property
    def is_open(self) -> bool:
        """True while calls are refused."""
        return self._failures >= self._threshold

    def may_probe(self) -> bool:
        """Return whether a probe is due. True once per pause, so that concurrent callers send one probe."""
        if self._clock() < self._probe_at:
            return False
        self._probe_at = self._clock() + self._pause
        return True

    def succeeded(self) -> None:
        """Record that the instance answered: close the breaker."""
        self._failures = 0
        self._pause = FIRST_PAUSE

    def failed(self) -> None:
        """Record that the instance was unreachable."""
        was_open = self.is_open
        self._failures += 1
        if was_open:
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        if self.is_open:
            self._probe_at = self._clock() + self._pause
