"""Durations in text form: ``30m``, ``1h30m``, ``1.5s``.

The grammar is Go's, because existing configurations use it: a sequence of numbers with a unit each, without days.
A duration is stored in whole nanoseconds, so that it can be formatted back exactly.
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
_MAX_TEXT = 64

PATTERN = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(h|m|s|ms|us|µs|ns)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(h|m|s|ms|us|µs|ns))*$"
"""Pattern for JSON Schema, so that editors can check durations."""


@dataclass(frozen=True, order=True)
class Duration:
    """A length of time that is not negative. Durations compare; ``str()`` gives the shortest form."""

    nanoseconds: int

    def __post_init__(self) -> None:
        if not 0 <= self.nanoseconds <= _LIMIT:
            raise ValueError("a duration must be between 0 and about 292 years")

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
    """Parse a duration.

    Raises:
        ValueError: with the expected format.
    """
    text = text.strip()
    subject = f"{text[:_MAX_TEXT]!r} is not a duration"
    if text in ("0", "+0"):
        return Duration(0)
    if text.startswith("-"):
        raise ValueError(f"{subject}; it cannot be negative")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        raise ValueError(f"{subject}; add a unit, like {text[:12]}s or {text[:12]}m")
    if days := re.fullmatch(r"([0-9]{1,6})\s*d(ays?)?", text):
        raise ValueError(f"{subject}; there is no unit for days, write {int(days[1]) * 24}h")

    total, at = Decimal(0), 0
    for part in _PART.finditer(text.removeprefix("+")[:_MAX_TEXT]):
        if part.start() != at:
            break
        total += Decimal(part[1]) * _UNITS[part[2]]
        at = part.end()
    if not at or at != len(text.removeprefix("+")):
        raise ValueError(f"{subject}; write it like 30m or 1h30m")
    if total > _LIMIT:
        raise ValueError(f"{subject}; it is longer than 292 years")
    return Duration(int(total))
