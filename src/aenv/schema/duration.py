"""Lengths of time as people write them: ``30m``, ``1h30m``, ``1.5s``.

The grammar is Go's, because existing configurations use it: numbers with a unit each, one after the other,
and no days. A duration is kept in whole nanoseconds, so what was written can be written back exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

_UNITS = {
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "µs": 1_000,  # the micro sign
    "μs": 1_000,  # the Greek letter, which looks the same
    "ns": 1,
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|us|µs|μs|ns|m|s)")
_LIMIT = 2**63 - 1  # what Go can hold: about 292 years
_LONGEST_TEXT = 64

PATTERN = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(h|m|s|ms|us|µs|ns)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(h|m|s|ms|us|µs|ns))*$"
"""For JSON Schema: what an editor can check without this module."""


@dataclass(frozen=True, order=True)
class Duration:
    """A length of time that is not negative. Durations compare; ``str()`` gives the shortest spelling."""

    nanoseconds: int

    def __post_init__(self) -> None:
        if not 0 <= self.nanoseconds <= _LIMIT:
            raise ValueError("a duration lies between 0 and about 292 years")

    @property
    def seconds(self) -> float:
        return self.nanoseconds / _UNITS["s"]

    def __bool__(self) -> bool:
        return self.nanoseconds > 0

    def __str__(self) -> str:
        if not self.nanoseconds:
            return "0s"
        rest, parts = self.nanoseconds, []
        for unit in ("h", "m", "s", "ms", "us", "ns"):
            count, rest = divmod(rest, _UNITS[unit])
            if count:
                parts.append(f"{count}{unit}")
        return "".join(parts)


def parse(text: str) -> Duration:
    """Read a duration.

    Raises:
        ValueError: with a sentence that says how to write it.
    """
    text = text.strip()
    wrong = f"{text[:_LONGEST_TEXT]!r} is not a duration"
    if text in ("0", "+0"):
        return Duration(0)
    if text.startswith("-"):
        raise ValueError(f"{wrong}; it cannot be negative")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        raise ValueError(f"{wrong}; add a unit, like {text[:12]}s or {text[:12]}m")
    if days := re.fullmatch(r"([0-9]{1,6})\s*d(ays?)?", text):
        raise ValueError(f"{wrong}; there is no unit for days, write {int(days[1]) * 24}h")

    total, at = Decimal(0), 0
    for part in _PART.finditer(text.removeprefix("+")[:_LONGEST_TEXT]):
        if part.start() != at:
            break
        total += Decimal(part[1]) * _UNITS[part[2]]
        at = part.end()
    if not at or at != len(text.removeprefix("+")):
        raise ValueError(f"{wrong}; write it like 30m or 1h30m")
    if total > _LIMIT:
        raise ValueError(f"{wrong}; it is longer than 292 years")
    return Duration(int(total))
