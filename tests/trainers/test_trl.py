from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.trainers.treasure import TREASURE, losing_instances, needs, outcomes

needs("trl", "trl")

from transformers.utils import get_json_schema  # noqa: E402

from aenv.adapters.trainers.trl import environment_class, task_rows  # noqa: E402
from aenv.errors import UsageError  # noqa: E402

RECIPES = Path(TREASURE).parent


def test_tools_are_methods_with_the_schema_that_the_environment_declares(store: Path) -> None:
    made = environment_class(TREASURE, store=store)
    assert made.__name__ == "Treasure"
    function = get_json_schema(made().move)["function"]
    assert function["name"] == "move"
    assert function["description"] == "Walk along the corridor."
    assert function["parameters"]["required"] == ["direction"]
    properties = function["parameters"]["properties"]
    assert properties["direction"] == {"type": "string", "enum": ["left", "right"], "description": "Where to go."}
    assert properties["steps"] == {"type": "integer", "description": "How far."}


def test_an_object_is_reset_for_each_task_and_graded(store: Path) -> None:
    made = environment_class(TREASURE, store=store)
    assert [row["task_id"] for row in task_rows(made)] == ["left", "right"]
    env = made()
    for row in task_rows(made):
        assert row["task_id"] in env.reset(**row)
        assert '"place":0' in asyncio.run(env.move(direction="left", steps=3))
        assert asyncio.run(env.get_reward()) == (1.0 if row["task_id"] == "left" else 0.0)
    assert outcomes(store)[1:] == [("left", "ok", 1.0), ("right", "ok", 0.0)]


def test_a_reward_that_cannot_be_computed_is_none(store: Path) -> None:
    env = environment_class(TREASURE, store=store)()
    env.reset(task_id="left")
    with losing_instances():
        assert "the machine of the instance has failed" in asyncio.run(env.move(direction="left"))
    assert asyncio.run(env.get_reward()) is None


def test_an_instance_that_cannot_be_started_is_no_reward(tmp_path: Path, store: Path) -> None:
    """TRL resets one object after another, and an exception there would end the training."""
    gone = {"id": "gone", "instruction": "Go left.", "environment": str(tmp_path / "nowhere")}
    tasks = [{"id": "left", "instruction": "Go left."}, gone]
    env = environment_class(TREASURE, tasks=tasks, store=store)()
    assert env.reset(task_id="gone") == "Go left."
    assert asyncio.run(env.move(direction="left")).startswith("Error: ")
    assert asyncio.run(env.get_reward()) is None
    env.reset(task_id="left")
    asyncio.run(env.move(direction="left", steps=3))
    assert asyncio.run(env.get_reward()) == 1.0


def test_an_episode_that_is_not_graded_is_released_by_the_next_reset(store: Path) -> None:
    made = environment_class(TREASURE, store=store)
    env = made()
    for _ in range(3):
        env.reset(task_id="left")
    asyncio.run(env.move(direction="left", steps=3))
    assert asyncio.run(env.get_reward()) == 1.0
    assert [each for each in outcomes(store) if each[1] == "ok"] == [("left", "ok", 1.0)]


def test_an_unknown_task_is_refused(store: Path) -> None:
    env = environment_class(TREASURE, store=store)()
    with pytest.raises(UsageError, match="no task"):
        env.reset(task_id=None, id="middle")


@pytest.mark.timeout(300)
def test_grpo_runs_with_trls_own_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe, for a few steps; its full curve is in docs/reference/frameworks.md."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.syspath_prepend(str(RECIPES))
    import grpo_trl

    try:
        rewards = grpo_trl.train(4, tmp_path)
    finally:
        sys.modules.pop("grpo_trl", None)
    assert len(rewards) == 4
    assert all(0.0 <= reward <= 1.0 for reward in rewards)
    done = [each for each in outcomes(tmp_path / "trajectories") if each[1] == "ok"]
    assert len(done) == 4 * 32
    assert {score for _, _, score in done} == {0.0, 1.0}
