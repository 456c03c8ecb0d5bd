"""Limits of an agent's work on one task: time and tool calls. At a limit the agent is stopped, and its state graded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aenv.errors import UsageError
from aenv.schema.tasks import TaskLimits


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Limits of one task; None: no limit, or the benchmark's own."""

    seconds: float | None = None
    steps: int | None = None
    """Number of tool calls."""

    @classmethod
    def of_task(cls, common: Mapping[str, Any], own: Mapping[str, Any] | None) -> AgentLimits:
        """Return the limits of a task: its own, else those of the run. The keys are ``timeout`` and ``steps``."""
        merged = {**common, **(own or {})}
        return cls(merged.get("timeout"), merged.get("steps"))

    def as_budget(self, seconds: float | None = None) -> TaskLimits:
        """Return the budget of an episode; ``seconds`` is the benchmark's own time limit."""
        steps = None if self.steps is None else max(1, int(self.steps))
        return TaskLimits(seconds=self.seconds or seconds, steps=steps)


def limit_reached(limits: TaskLimits, budget: str | None) -> tuple[Literal["budget", "timeout"], str]:
    """Return the outcome and the message of an agent that was stopped because a budget was used up."""
    if budget == "steps":
        return "budget", f"the agent used up its budget of {limits.steps} tool calls and was stopped"
    return "timeout", f"the agent exceeded its time limit of {limits.seconds or 0.0:g} s and was stopped"


def read_task_limits(file: Path) -> dict[str, dict[str, Any]]:
    """Read the limits of single tasks: ``{"task": {"timeout": 60, "steps": 5}}``.

    Raises:
        UsageError: the file cannot be read, or has another form.
    """
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from None
    for task, limits in found.items() if isinstance(found, dict) else [("", None)]:
        if not isinstance(limits, dict) or limits.keys() - {"timeout", "steps"}:
            raise UsageError(
                f"{file}: invalid limits of {task!r}",
                {"hint": 'Write them like {"task": {"timeout": 60, "steps": 5}}.'},
            )
        for name, value in limits.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise UsageError(f"{file}: {task}: {name} must be a number above 0, not {value!r}")
    return dict(found)
