"""Agents of rollouts on the tasks of benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.bench.built_in import BuiltInBenchmark
from aenv.bench.task_sets import BuiltInTasks
from aenv.errors import UsageError
from aenv.rollout import Episode, find_tasks, rollout
from aenv.trajectory import TrajectoryStore
from tests.conftest import run
from tests.isolation.host import Platform
from tests.rollout.conftest import results_of

HARBOR = Path(__file__).parent / "tasks" / "harbor"

pytestmark = pytest.mark.usefixtures("sandboxes", "shared_threads", "shared_cache")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TrajectoryStore]:
    with TrajectoryStore.open(tmp_path / "store") as opened:
        yield opened


def test_a_harbor_task_is_solved_and_not_solved(store: TrajectoryStore) -> None:
    async def agent(episode: Episode) -> None:
        found = await episode.call("execute_command", command="pwd")
        assert not found.is_error, found.text

    [solved] = results_of(rollout(tasks=HARBOR / "greet", agent="gold", store=store, retries=0))
    [idle] = results_of(rollout(tasks=HARBOR / "greet", agent=agent, store=store, retries=0))
    assert (solved.outcome, solved.reward) == ("ok", 1.0), solved
    assert (idle.outcome, idle.reward) == ("ok", 0.0), idle
    assert "execute_command" in [event.get("tool") for event in store.events(idle.episode)]


def test_tasks_of_a_folder_are_listed_with_their_limits() -> None:
    tasks = {task.id: task for task in run(find_tasks(str(HARBOR)).tasks())}
    assert set(tasks) == {"greet", "serve", "unstartable"}
    assert tasks["greet"].limits.seconds is not None
    assert tasks["greet"].instruction


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tasks in a known format"):
        find_tasks(str(tmp_path))


def test_options_of_a_benchmark_come_after_its_name() -> None:
    tasks = run(find_tasks(f"terminal?tasks={HARBOR}&only=greet").tasks())
    assert [task.id for task in tasks] == ["greet"]
    with pytest.raises(UsageError, match="no option 'wrong'"):
        find_tasks("tau2?wrong=1")


SOURCE = """
import os
from aenv import register_function, register_reward, register_tool

said = []

@register_tool
def say(text: str) -> str:
    said.append(text)
    return text

@register_function
def list_tasks() -> list[str]:
    return ["red", "blue"]

@register_function
def get_task() -> dict:
    return {"instruction": f"Say {os.environ['COLOUR']}."}

@register_function
def get_solution() -> list[dict]:
    return [{"tool": "say", "arguments": {"text": os.environ["COLOUR"]}}]

@register_reward
def score() -> dict:
    return {"score": float(said == [os.environ["COLOUR"]]), "do_nothing_reward": 0.0, "length": 3.0}
"""


def test_a_benchmark_with_an_environment_of_its_own_runs_any_agent(
    store: TrajectoryStore, tmp_path: Path, platform: Platform
) -> None:
    project = tmp_path / "colours.py"
    project.write_text(SOURCE)

    class Colours(BuiltInBenchmark):
        """A benchmark of two tasks."""

        name = "colours"
        summary = "Say a colour."
        env = str(project)
        listing = "list_tasks"

        def variables(self, task: str) -> dict[str, str]:
            return {"COLOUR": task}

    gold = results_of(rollout(tasks=BuiltInTasks(Colours({})), agent="gold", store=store, retries=0))
    idle = results_of(rollout(tasks=BuiltInTasks(Colours({"tasks": "red"})), agent="nop", store=store, retries=0))
    assert sorted((result.task, result.outcome, result.score) for result in gold) == [
        ("blue", "ok", 1.0), ("red", "ok", 1.0),
    ]  # fmt: skip
    assert [(result.task, result.score) for result in idle] == [("red", 0.0)]
    assert store.episode(gold[0].episode).score == 1.0
