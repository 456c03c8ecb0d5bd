"""Compare two runs of a benchmark, task by task."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from aenv.bench.runs import BenchRun
from aenv.errors import UsageError


@dataclass(frozen=True, slots=True)
class TaskComparison:
    """Rewards of one task in two runs; None: there is none."""

    task: str
    first: float | None
    second: float | None

    @property
    def difference(self) -> float | None:
        """Second reward minus the first, where both are there."""
        return None if self.first is None or self.second is None else self.second - self.first


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side. Means and counts are over the tasks that have a reward in both."""

    benchmark: str
    runs: tuple[str, str]
    agents: tuple[str, str]
    tasks: list[TaskComparison] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document of the comparison."""
        both = [task for task in self.tasks if task.difference is not None]
        differences = [task.difference or 0.0 for task in both]
        return {
            "benchmark": self.benchmark,
            "runs": list(self.runs),
            "agents": list(self.agents),
            "compared": len(both),
            "not_compared": [task.task for task in self.tasks if task.difference is None],
            "better": sum(1 for each in differences if each > 0),
            "worse": sum(1 for each in differences if each < 0),
            "equal": sum(1 for each in differences if each == 0),
            "mean_rewards": [_mean([task.first or 0.0 for task in both]), _mean([task.second or 0.0 for task in both])],
            "mean_difference": _mean(differences),
            "tasks": [{**asdict(task), "difference": task.difference} for task in self.tasks],
        }


def compare(first: BenchRun, second: BenchRun) -> Comparison:
    """Compare two runs.

    Raises:
        UsageError: they are runs of different benchmarks.
    """
    names = (first.request.benchmark, second.request.benchmark)
    if names[0] != names[1]:
        raise UsageError(f"{first.path.name} is a run of {names[0]}, and {second.path.name} one of {names[1]}")
    rewards = [{result.task: result.reward for result in run.results()} for run in (first, second)]
    tasks = [
        TaskComparison(task, rewards[0].get(task), rewards[1].get(task)) for task in sorted({*rewards[0], *rewards[1]})
    ]
    agents = (first.request.agent, second.request.agent)
    return Comparison(names[0], (str(first.path), str(second.path)), agents, tasks)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
