"""How many episodes run at the same time: a fixed number, or as many as machine, platform and model take."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

MAX_ADAPTIVE = 1024
BUSY = 0.95
"""Share of CPU time in use above which there are not more episodes started."""
SLOW = 2.0
"""Growth of the model's latency, as a factor of the shortest, above which there are not more."""
PAUSE = 1.0
"""Seconds between two reductions: the effect of the first one must show first."""


class Concurrency(Protocol):
    """The number of episodes that may run now."""

    @property
    def limit(self) -> int:
        """The current limit, at least 1."""
        ...

    def finished(self) -> None:
        """Take note of an episode that has ended."""
        ...

    def refused(self) -> None:
        """Take note that the platform or the model refused a request because it has too many."""
        ...

    def answered(self, seconds: float) -> None:
        """Take note of the duration of a model request."""
        ...


class Fixed:
    """A fixed limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def finished(self) -> None:
        return

    def refused(self) -> None:
        return

    def answered(self, seconds: float) -> None:
        return


class Adaptive:
    """Additive increase, multiplicative decrease.

    The limit grows by one for each round of episodes, unless the CPUs are busy or the model has become slow. It is
    halved when the platform or the model refuses a request.
    """

    def __init__(
        self, start: int | None = None, maximum: int = MAX_ADAPTIVE, cpu_share: Callable[[], float] | None = None
    ) -> None:
        """``cpu_share``: returns the share of CPU time in use; default: that of this machine."""
        self._limit = float(start or 4 * (os.cpu_count() or 1))
        self._maximum = maximum
        self._reduced = 0.0
        self._fastest: float | None = None
        self._recent: float | None = None
        self._cpu_share = cpu_share or _CpuShare().busy
        self._growing = True

    @property
    def limit(self) -> int:
        return max(1, int(self._limit))

    def finished(self) -> None:
        if self._cpu_share() < BUSY and not self._is_slow():
            # Until the first refusal it doubles each round, as TCP does: a good start is not known.
            self._limit = min(self._maximum, self._limit + (1.0 if self._growing else 1.0 / self._limit))

    def refused(self) -> None:
        self._growing = False
        now = time.monotonic()
        if now - self._reduced >= PAUSE:
            self._reduced = now
            self._limit = max(1.0, self._limit / 2)

    def answered(self, seconds: float) -> None:
        self._fastest = seconds if self._fastest is None else min(self._fastest * 1.001, seconds)
        self._recent = seconds if self._recent is None else 0.9 * self._recent + 0.1 * seconds

    def _is_slow(self) -> bool:
        if self._fastest is None or self._recent is None:
            return False
        return self._recent > max(SLOW * self._fastest, 0.05)


class _CpuShare:
    """Share of this machine's CPU time in use, measured twice a second at most."""

    def __init__(self) -> None:
        self._at = 0.0
        self._share = 0.0
        self._before = _times()

    def busy(self) -> float:
        now = time.monotonic()
        if now - self._at >= 0.5:
            used, total = _times()
            before_used, before_total = self._before
            if total > before_total:
                self._share = (used - before_used) / (total - before_total)
                self._before = used, total
            self._at = now
        return self._share


def _times() -> tuple[int, int]:
    """Return the CPU time in use and in total, in ticks; zeros where the kernel does not tell."""
    try:
        values = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(values) - values[3] - values[4], sum(values)
