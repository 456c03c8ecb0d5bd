# A corridor with a treasure at one end and a trap at the other; the instruction says where the treasure lies.
# Small enough that a trainer learns it in a minute on a CPU. The recipes beside it train on it.

import os
from collections.abc import Iterator
from typing import Any, Literal

from aenv import register_reward, register_tasks, register_tool

LENGTH = 7
place = LENGTH // 2
treasure = 0 if os.environ.get("TREASURE", "left") == "left" else LENGTH - 1


@register_tasks
def tasks() -> Iterator[dict[str, Any]]:
    """Return one task for each end of the corridor."""
    for side in ("left", "right"):
        yield {
            "id": side,
            "instruction": f"You are in the middle of a corridor. The treasure lies at its {side} end.",
            "variables": {"TREASURE": side},
            "solution": [{"tool": "move", "arguments": {"direction": side, "steps": LENGTH // 2}}],
        }


@register_tool
def move(direction: Literal["left", "right"], steps: int = 1) -> dict[str, Any]:
    """Walk along the corridor.

    Args:
        direction: Where to go.
        steps: How far.
    """
    global place
    if place in (0, LENGTH - 1):
        raise ValueError("you are at an end of the corridor, and cannot leave it")
    if not 1 <= steps <= LENGTH:
        raise ValueError(f"steps must be 1 to {LENGTH}")
    place = max(0, min(LENGTH - 1, place + (steps if direction == "right" else -steps)))
    return {"place": place, "terminated": place in (0, LENGTH - 1)}


@register_reward
def found() -> float:
    """Return 1 at the treasure, else 0."""
    return float(place == treasure)
