from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.treasure import TREASURE, losing_instances, needs, outcomes

needs("gymnasium", "gymnasium")

import numpy as np  # noqa: E402
from gymnasium import spaces  # noqa: E402
from gymnasium.utils.env_checker import check_env  # noqa: E402

from aenv.adapters.trainers.episodes import EpisodeFailed  # noqa: E402
from aenv.adapters.trainers.gymnasium import ToolEnv, ToolVectorEnv  # noqa: E402
from aenv.adapters.trainers.stepping import StepMapping  # noqa: E402


class Corridor(StepMapping):
    """Places as a vector, and two directions."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0.0, 1.0, (7,), np.float32)

    def call(self, action: Any) -> Any:
        return "move", {"direction": ("left", "right")[int(action)]}

    def first(self, episode: Any) -> Any:
        return np.eye(7, dtype=np.float32)[3]

    def observation(self, result: Any, episode: Any) -> Any:
        return np.eye(7, dtype=np.float32)[result.data["place"]]


def text(direction: str, steps: int) -> str:
    return json.dumps({"name": "move", "arguments": {"direction": direction, "steps": steps}})


def test_gymnasiums_own_check_passes_with_numbers_and_with_text(store: Path) -> None:
    for mapping in (Corridor(), StepMapping()):
        env = ToolEnv(TREASURE, mapping=mapping, store=store)
        check_env(env, skip_render_check=True)
        env.close()


def test_steps_are_tool_calls_and_the_last_one_has_the_environments_reward(store: Path) -> None:
    env = ToolEnv(TREASURE, mapping=Corridor(), store=store)
    seen, info = env.reset(options={"task": "right"})
    assert (int(seen.argmax()), info["task"]) == (3, "right")
    rewards = [env.step(1) for _ in range(3)]
    assert [(int(step[0].argmax()), *step[1:4]) for step in rewards] == [
        (4, 0.0, False, False),
        (5, 0.0, False, False),
        (6, 1.0, True, False),
    ]
    env.close()
    assert outcomes(store) == [("right", "ok", 1.0)]


def test_text_actions_are_tool_calls_and_an_answer_ends_the_episode(store: Path) -> None:
    env = ToolEnv(TREASURE, store=store)
    seen, _ = env.reset(options={"task": "left"})
    assert "left end" in seen
    assert [tool["function"]["name"] for tool in env.tools] == ["move"]
    seen, reward, terminated, truncated, _ = env.step("<tool_call>" + text("left", 9) + "</tool_call>")
    assert "steps must be 1 to 7" in seen  # the agent reads its mistake
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.step("I give up.")[1:4] == (0.0, True, False)
    env.reset(options={"task": "left"})
    assert env.step(text("left", 3))[1:4] == (1.0, True, False)
    env.close()


def test_an_episode_over_its_steps_is_truncated_and_graded(store: Path) -> None:
    env = ToolEnv(TREASURE, mapping=Corridor(), max_steps=2, store=store)
    env.reset(seed=1)
    assert env.step(0)[2:4] == (False, False)
    assert env.step(1)[1:4] == (0.0, False, True)
    env.close()


def test_the_seed_chooses_the_task(store: Path) -> None:
    env = ToolEnv(TREASURE, store=store)
    chosen = [env.reset(seed=seed)[1]["task"] for seed in range(8)]
    assert set(chosen) == {"left", "right"}
    assert [env.reset(seed=seed)[1]["task"] for seed in range(8)] == chosen
    env.close()


def test_a_lost_instance_raises_and_is_no_reward(store: Path) -> None:
    env = ToolEnv(TREASURE, mapping=Corridor(), store=store)
    env.reset(options={"task": "left"})
    with losing_instances(), pytest.raises(EpisodeFailed) as failed:
        env.step(0)
    assert failed.value.fault == "infra"
    env.reset(options={"task": "left"})  # the next episode has an instance of its own
    assert env.step(0)[1:4] == (0.0, False, False)
    env.close()
    assert ("left", "infra", None) in outcomes(store)


def test_a_vector_steps_all_instances_and_begins_again_after_an_end(store: Path) -> None:
    env = ToolVectorEnv(TREASURE, 4, mapping=Corridor(), store=store)
    seen, info = env.reset(options={"tasks": ["left", "right", "left", "right"]})
    assert seen.shape == (4, 7)
    assert list(info["task"]) == ["left", "right", "left", "right"]
    for _ in range(3):
        seen, rewards, terminated, truncated, info = env.step(np.array([0, 0, 0, 0]))
    assert rewards.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert terminated.all()
    assert not truncated.any()
    assert list(info["outcome"]) == ["ok"] * 4
    seen, rewards, terminated, _, _ = env.step(np.array([1, 1, 1, 1]))
    assert seen.argmax(axis=1).tolist() == [3, 3, 3, 3]  # new episodes: the action is not used
    assert not terminated.any()
    env.close()
    assert outcomes(store)[0:4] != []


def test_a_vector_of_texts(store: Path) -> None:
    env = ToolVectorEnv(TREASURE, 2, store=store)
    seen, _ = env.reset(options={"tasks": ["left", "right"]})
    assert "left end" in seen[0]
    assert "right end" in seen[1]
    _, rewards, terminated, _, _ = env.step((text("left", 3), "done"))
    assert rewards.tolist() == [1.0, 0.0]
    assert terminated.all()
    env.close()
