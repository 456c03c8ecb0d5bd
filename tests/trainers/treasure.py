"""The environment that all trainers are given, and what their tests look up."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from aenv import Environment
from aenv.errors import InstanceEnded
from aenv.rollout.agents.scripted import calls
from aenv.trajectory import TrajectoryStore
from tests.usage.documents import PRINTED

TREASURE = str(Path(__file__).parents[2] / "examples" / "training" / "treasure")


GRADES = [
    {"id": name, "reward": {"arguments": {"code": "", "test_results": {"passed": name == "good"}}}}
    for name in ("good", "bad")
]
"""Tasks for `printed_project`."""


def printed_project(folder: Path) -> str:
    """Return a project with the tool and the reward that the document of the announced concepts prints."""
    (folder / "src").mkdir()
    (folder / "config.json").write_text(json.dumps({"name": "my-env", "version": "1.0.0"}))
    (folder / "src" / "env.py").write_text(f"{PRINTED['a described tool'].code}\n{PRINTED['a reward'].code}\n")
    return str(folder)


def needs(module: str, extra: str) -> None:
    """Skip the tests of a module where the trainer is not installed."""
    pytest.importorskip(module, reason=f"needs {module}: pip install 'aenvironment[{extra}]'", exc_type=ImportError)


def outcomes(store: Path) -> list[tuple[str, str, float | None]]:
    """Return task, outcome and score of the recorded episodes, sorted."""
    with TrajectoryStore.open(store) as opened:
        return sorted((each.task, str(each.outcome), each.score) for each in opened.all_episodes())


@contextmanager
def losing_instances(count: int | None = None) -> Iterator[None]:
    """Make tool calls find their instance lost, as after the failure of a machine: the first ones, or all."""
    left = itertools.count() if count is None else iter(range(count))
    call = Environment.call_tool

    async def lost(*given: Any, **named: Any) -> Any:
        if next(left, None) is None:
            return await call(*given, **named)
        raise InstanceEnded("the machine of the instance has failed")

    with mock.patch.object(Environment, "call_tool", lost):
        yield


def walks(direction: str) -> list[Any]:
    """Return the answers of a model that walks to one end, then says so."""
    return [calls(("move", {"direction": direction, "steps": 3})), "I am there."]
