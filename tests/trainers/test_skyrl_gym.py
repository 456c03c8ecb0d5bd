from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.treasure import TREASURE, losing_instances, needs, outcomes

needs("skyrl_gym", "skyrl-gym")

import skyrl_gym  # noqa: E402

from aenv.adapters.trainers.episodes import EpisodeFailed  # noqa: E402
from aenv.adapters.trainers.skyrl_gym import register  # noqa: E402


def made(store: Path, **extras: Any) -> Any:
    register()
    return skyrl_gym.make("aenv", env_config={"environment": TREASURE, "store": str(store)}, extras=extras)


def call(direction: str, steps: int) -> str:
    wanted = {"name": "move", "arguments": {"direction": direction, "steps": steps}}
    return f"I go.<tool_call>{json.dumps(wanted)}</tool_call>"


def test_text_with_calls_is_run_and_an_answer_ends_with_the_reward(store: Path) -> None:
    env = made(store, task_id="right")
    prompt, about = env.init([])
    assert about == {"task": "right"}
    assert [message["role"] for message in prompt] == ["system", "user"]
    assert '"name": "move"' in prompt[0]["content"]
    assert "right end" in prompt[1]["content"]
    step = env.step(call("right", 9))
    assert "steps must be 1 to 7" in step["observations"][0]["content"]
    assert (step["reward"], step["done"]) == (0.0, False)
    step = env.step(call("right", 3))
    assert '"place":6' in step["observations"][0]["content"]
    last = env.step("I am there.")
    assert (last["reward"], last["done"], last["metadata"]["outcome"]) == (1.0, True, "ok")
    assert env.get_metrics()["steps"] == 2
    env.close()
    assert outcomes(store) == [("right", "ok", 1.0)]


def test_the_prompt_of_the_dataset_comes_first_and_turns_are_limited(store: Path) -> None:
    env = made(store, extra_info={"task_id": "left"}, max_turns=1)
    prompt, _ = env.init([{"role": "user", "content": "Go left."}])
    assert prompt[1]["content"] == "Go left."
    step = env.step(call("left", 3))
    assert (step["reward"], step["done"]) == (1.0, True)
    env.close()


def test_a_lost_instance_raises_and_is_no_reward(store: Path) -> None:
    env = made(store, task_id="left")
    env.init([])
    with losing_instances(), pytest.raises(EpisodeFailed):
        env.step(call("left", 3))
    env.close()
    assert outcomes(store) == [("left", "infra", None)]
