"""Retry policy of all clients: exponential backoff with jitter, bounded."""

from __future__ import annotations

import random

MAX_SERVER_PAUSE = 60.0
"""Upper bound of what a server may ask for in ``retry-after``."""


def backoff(attempt: int, *, first: float, longest: float, asked: object = None) -> float:
    """Return the seconds to wait before retry number ``attempt``, counted from 0.

    ``asked``: the server's ``retry-after``, which wins if it is a number. Jitter keeps clients that failed together
    from coming back together.
    """
    try:
        return min(float(asked), MAX_SERVER_PAUSE)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return min(longest, first * 2.0 ** min(attempt, 60)) * random.uniform(0.5, 1.0)
