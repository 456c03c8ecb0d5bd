"""Durations of the parts of a task."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def measured(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Write the duration of the block to ``seconds``, under the name of the part."""
    began = time.monotonic()
    try:
        yield
    finally:
        seconds[part] = round(time.monotonic() - began, 3)
