"""Runs on disk: what was asked for, and one record for each task, saved as it comes."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aenv.bench.base import Result
from aenv.errors import ConfigError, UsageError

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_ABOUT, _RESULT = "run.json", "result.json"


def folder() -> Path:
    """Where runs are kept that were not given a folder: below the user's data folder."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "aenv" / "runs"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a run was begun with; it is taken up again with the same."""

    benchmark: str
    agent: str
    options: dict[str, str] = field(default_factory=dict)
    limit: int | None = None
    """Only so many tasks."""
    nothing: dict[str, float] = field(default_factory=dict)
    """What doing nothing gets, where it is known."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run."""

    path: Path
    asked: RunRequest

    @classmethod
    def begin(cls, path: Path | None, asked: RunRequest) -> BenchRun:
        """A new one; or, where there is one at the path that was begun with the same, that one.

        Raises:
            UsageError: what is there is another's.
        """
        path = path or folder() / f"{time.strftime('%Y%m%d-%H%M%S')}-{asked.benchmark}-{os.getpid()}"
        path = path.absolute()
        if (path / _ABOUT).exists():
            there = cls.open(path)
            if _same(there.asked) != _same(asked):
                raise UsageError(
                    f"{path} is a run of {there.asked.benchmark} with the agent {there.asked.agent!r}, "
                    "and was begun with other options",
                    {"hint": f"Go on with it: aenv bench resume {path}; or name another folder."},
                )
            return there
        if path.is_dir() and any(path.iterdir()):
            raise UsageError(f"{path} is not empty, and no run", {"hint": "Name a folder that is not there yet."})
        path.mkdir(parents=True, exist_ok=True)
        _write(path / _ABOUT, asdict(asked))
        return cls(path, asked)

    @classmethod
    def open(cls, path: Path) -> BenchRun:
        """One that is there: by its folder, or by its name among the user's runs.

        Raises:
            UsageError: there is none.
            ConfigError: it cannot be read.
        """
        for place in (path.absolute(), folder() / path):
            if (place / _ABOUT).is_file():
                try:
                    return cls(place, RunRequest(**json.loads((place / _ABOUT).read_text())))
                except (ValueError, TypeError) as error:
                    raise ConfigError(f"{place / _ABOUT} cannot be read: {error}") from None
        raise UsageError(f"there is no run {path}", {"hint": "See them all: aenv bench show"})

    def place(self, task: str) -> Path:
        """The folder of one task."""
        return self.path / "tasks" / _UNSAFE.sub("_", task).lstrip(".")

    def save(self, result: Result) -> None:
        """Keep a result, whole or not at all."""
        _write(self.place(result.task) / _RESULT, result.as_json())

    def results(self) -> Iterator[Result]:
        """Those that are there, by the name of the task."""
        for path in sorted(self.path.glob(f"tasks/*/{_RESULT}")):
            try:
                yield Result.from_json(json.loads(path.read_text()))
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{path} cannot be read: {error}", {"hint": "Remove it to run it again."}) from None

    def summary(self) -> dict[str, Any]:
        """All of it, for people and programs."""
        results = list(self.results())
        graded = {result.task: result.reward for result in results if result.reward is not None}
        found = {result.task: result.outputs["do_nothing"] for result in results if "do_nothing" in result.outputs}
        nothing = {task: reward for task, reward in (found | self.asked.nothing).items() if task in graded}
        return {
            "run": str(self.path),
            "benchmark": self.asked.benchmark,
            "agent": self.asked.agent,
            "tasks": len(results),
            "graded": len(graded),
            "faults": len(results) - len(graded),
            "mean_reward": _mean(graded),
            "do_nothing": _mean(nothing) if len(nothing) == len(graded) else None,
            "results": [result.as_json() for result in results],
        }


def known() -> list[BenchRun]:
    """The user's runs, the newest last."""
    return [BenchRun.open(path.parent) for path in sorted(folder().glob(f"*/{_ABOUT}"))]


def _same(asked: RunRequest) -> dict[str, Any]:
    return {**asdict(asked), "nothing": None}


def _mean(rewards: Mapping[str, float]) -> float | None:
    return sum(rewards.values()) / len(rewards) if rewards else None


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n")
    fresh.replace(path)
