"""Disturbances of a simulated world: errors, delays and partial data, chosen by a seed."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from aenv.errors import UsageError

UNAVAILABLE = "The service is temporarily unavailable. Try again later."


@dataclass(frozen=True, slots=True)
class Perturbations:
    """How often calls are disturbed: probabilities from 0 to 1. The same seed, episode and call give the same."""

    errors: float = 0.0
    """A call fails with a message that tells to try again, and changes nothing."""
    delays: float = 0.0
    """A call takes ``delay_seconds`` longer."""
    partial: float = 0.0
    """The result misses a part: the second half of each list, and fields that are not required."""
    delay_seconds: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not all(0 <= each <= 1 for each in (self.errors, self.delays, self.partial)) or self.delay_seconds < 0:
            raise UsageError("errors, delays and partial must be from 0 to 1, and delay_seconds at least 0")

    def of_call(self, episode: str, number: int) -> frozenset[str]:
        """Return how the call with this number is disturbed: ``error``, ``delay``, ``partial``."""
        draws = random.Random(f"{self.seed}/{episode}/{number}")
        chances = {"error": self.errors, "delay": self.delays, "partial": self.partial}
        return frozenset(name for name, chance in chances.items() if draws.random() < chance)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as a JSON object."""
        return asdict(self)


def part_of(value: Any, schema: dict[str, Any] | None) -> Any:
    """Return a part of a result: half of each list, and of objects only the fields that their schema requires."""
    if isinstance(value, list):
        items = (schema or {}).get("items")
        kept = value[: (len(value) + 1) // 2]
        return [part_of(item, items if isinstance(items, dict) else None) for item in kept]
    if isinstance(value, dict):
        properties = (schema or {}).get("properties") or {}
        required = set((schema or {}).get("required") or ())
        kept_names = [name for name in value if name in required or name not in properties]
        return {name: part_of(value[name], properties.get(name)) for name in kept_names}
    return value
