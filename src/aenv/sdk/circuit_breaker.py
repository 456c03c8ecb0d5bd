"""Stop calling an instance that cannot be reached, and find out when it can be again."""

from __future__ import annotations

import time
from collections.abc import Callable

THRESHOLD = 5
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class CircuitBreaker:
    """Opens after several failures in a row; from time to time lets one probe through."""

    def __init__(self, threshold: int = THRESHOLD, clock: Callable[[], float] = time.monotonic) -> None:
        self._threshold = threshold
        self._clock = clock
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._probe_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls are refused."""
        return self._failures >= self._threshold

    def may_probe(self) -> bool:
        """Whether it is time to look again. Says yes once per pause, so that a crowd sends one probe."""
        if self._clock() < self._probe_at:
            return False
        self._probe_at = self._clock() + self._pause
        return True

    def succeeded(self) -> None:
        """The instance answered."""
        self._failures = 0
        self._pause = FIRST_PAUSE

    def failed(self) -> None:
        """The instance was not reached."""
        was_open = self.is_open
        self._failures += 1
        if was_open:
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        if self.is_open:
            self._probe_at = self._clock() + self._pause
