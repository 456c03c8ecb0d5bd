"""Runs on disk: the request of a run, and one result file per task."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aenv.bench.base import Result
from aenv.errors import ConfigError, UsageError

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_ABOUT, _RESULT = "run.json", "result.json"


def folder() -> Path:
    """Return the default folder for runs, below the user's data folder."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "aenv" / "runs"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Benchmark, agent and options of a run; resuming it uses the same."""

    benchmark: str
    agent: str
    options: dict[str, str] = field(default_factory=dict)
    limit: int | None = None
    """Maximum number of tasks."""
    nothing: dict[str, float] = field(default_factory=dict)
    """Rewards of doing nothing by task, where they are known."""
    limits: dict[str, float] = field(default_factory=dict)
    """Limits of the agent in each task: `timeout` in seconds, and `steps`."""
    task_limits: dict[str, dict[str, float]] = field(default_factory=dict)
    """Limits of single tasks, in place of those."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """A run of a benchmark, with its results on disk."""

    path: Path
    request: RunRequest

    @classmethod
    def begin(cls, path: Path | None, request: RunRequest) -> BenchRun:
        """Create a run, or return the existing one at ``path`` if its request is the same.

        Raises:
            UsageError: the folder contains another run or other files.
        """
        path = path or folder() / f"{time.strftime('%Y%m%d-%H%M%S')}-{request.benchmark}-{os.getpid()}"
        path = path.absolute()
        if (path / _ABOUT).exists():
            there = cls.open(path)
            if _same(there.request) != _same(request):
                raise UsageError(
                    f"{path} is a run of {there.request.benchmark} with the agent {there.request.agent!r}, "
                    "and was started with other options",
                    {"hint": f"Resume it with: aenv bench resume {path}; or choose another folder."},
                )
            return there
        if path.is_dir() and any(path.iterdir()):
            raise UsageError(f"{path} is not empty and not a run", {"hint": "Choose a folder that does not exist yet."})
        path.mkdir(parents=True, exist_ok=True)
        _write(path / _ABOUT, asdict(request))
        return cls(path, request)

    @classmethod
    def open(cls, path: Path) -> BenchRun:
        """Open an existing run by its folder, or by its name among the user's runs.

        Raises:
            UsageError: there is no such run.
            ConfigError: its file cannot be read.
        """
        for place in (path.absolute(), folder() / path):
            if (place / _ABOUT).is_file():
                try:
                    return cls(place, RunRequest(**json.loads((place / _ABOUT).read_text())))
                except (ValueError, TypeError) as error:
                    raise ConfigError(f"{place / _ABOUT} cannot be read: {error}") from None
        raise UsageError(f"no such run: {path}", {"hint": "List all runs: aenv bench show"})

    @property
    def trajectories(self) -> Path:
        """Folder of the store with the episodes of the run, for `aenv trajectory --store`."""
        return self.path / "trajectories"

    def task_folder(self, task: str) -> Path:
        """Return the folder of a task."""
        return self.path / "tasks" / _UNSAFE.sub("_", task).lstrip(".")

    def save(self, result: Result) -> None:
        """Save a result atomically."""
        _write(self.task_folder(result.task) / _RESULT, result.as_json())

    def results(self) -> Iterator[Result]:
        """Yield the saved results, sorted by task."""
        for path in sorted(self.path.glob(f"tasks/*/{_RESULT}")):
            try:
                yield Result.from_json(json.loads(path.read_text()))
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{path} cannot be read: {error}", {"hint": "Remove it to run it again."}) from None

    def summary(self) -> dict[str, Any]:
        """Return totals, the mean reward and all results."""
        results = list(self.results())
        graded = {result.task: result.reward for result in results if result.reward is not None}
        found = {result.task: result.outputs["do_nothing"] for result in results if "do_nothing" in result.outputs}
        nothing = {task: reward for task, reward in (found | self.request.nothing).items() if task in graded}
        without = sum(1 for result in results if result.outcome == "no_solution")
        return {
            "run": str(self.path),
            "benchmark": self.request.benchmark,
            "agent": self.request.agent,
            "tasks": len(results),
            "graded": len(graded),
            "faults": len(results) - len(graded) - without,
            "without_solution": without,
            "outcomes": dict(Counter(_outcome(result) for result in results)),
            "mean_reward": _mean(graded),
            "do_nothing": _mean(nothing) if len(nothing) == len(graded) else None,
            "results": [result.as_json() for result in results],
        }


def known() -> list[BenchRun]:
    """Return the user's runs, newest last."""
    return [BenchRun.open(path.parent) for path in sorted(folder().glob(f"*/{_ABOUT}"))]


def _outcome(result: Result) -> str:
    return result.outcome or ("graded" if result.counts else "failed")


def _same(request: RunRequest) -> dict[str, Any]:
    return {**asdict(request), "nothing": None}


def _mean(rewards: Mapping[str, float]) -> float | None:
    return sum(rewards.values()) / len(rewards) if rewards else None


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n")
    fresh.replace(path)
