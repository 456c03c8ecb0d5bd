from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainers.treasure import GRADES, TREASURE, losing_instances, needs, outcomes, printed_project

needs("stable_baselines3", "stable-baselines3")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gymnasium import spaces  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.vec_env import VecMonitor  # noqa: E402

from aenv.adapters.trainers.episodes import EpisodeFailed  # noqa: E402
from aenv.adapters.trainers.stable_baselines3 import ToolVecEnv  # noqa: E402
from aenv.adapters.trainers.stepping import StepMapping  # noqa: E402
from aenv.errors import UsageError  # noqa: E402
from tests.trainers.test_gymnasium import Corridor  # noqa: E402


def test_an_episode_that_ends_is_followed_by_another_in_the_same_step(store: Path) -> None:
    env = ToolVecEnv(TREASURE, 2, mapping=Corridor(), store=store)
    env.set_options([{"task": "left"}, {"task": "right"}])
    assert env.reset().shape == (2, 7)
    assert [info["task"] for info in env.reset_infos] == ["left", "right"]
    for _ in range(3):
        seen, rewards, done, infos = env.step(np.array([0, 0]))
    assert rewards.tolist() == [1.0, 0.0]
    assert done.all()
    assert [int(info["terminal_observation"].argmax()) for info in infos] == [0, 0]
    assert seen.argmax(axis=1).tolist() == [3, 3]
    env.close()
    assert [each[1:] for each in outcomes(store) if each[1] == "ok"] == [("ok", 1.0), ("ok", 0.0)]


def test_ppo_learns_in_the_environment(store: Path) -> None:
    """The observations have no word of where the treasure is, so one task alone is trained."""
    env = VecMonitor(
        ToolVecEnv(TREASURE, 4, mapping=Corridor(), max_steps=10, store=store, tasks=[
            {"id": "right", "variables": {"TREASURE": "right"}},
        ])
    )  # fmt: skip
    torch.set_num_threads(1)  # more are slower on a busy machine
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, learning_rate=0.01, seed=3, device="cpu")
    model.learn(1536)
    rewards = [episode["r"] for episode in model.ep_info_buffer or ()]
    assert np.mean(rewards[-20:]) > 0.9  # by chance: 0.5
    env.close()


def test_mappings_of_text_are_refused(store: Path) -> None:
    with pytest.raises(UsageError, match="spaces of numbers"):
        ToolVecEnv(TREASURE, 2, mapping=StepMapping(), store=store)


def test_a_lost_instance_raises(store: Path) -> None:
    env = ToolVecEnv(TREASURE, 2, mapping=Corridor(), store=store)
    env.reset()
    with losing_instances(), pytest.raises(EpisodeFailed):
        env.step(np.array([0, 0]))
    env.close()


class Process(StepMapping):
    """Calls the tool with a number, and sees whether it has answered."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def call(self, action: Any) -> tuple[str, dict[str, Any]]:
        return "my_tool", {"param1": "it", "param2": int(action)}

    def first(self, episode: Any) -> Any:
        return np.zeros(1, np.float32)

    def observation(self, result: Any, episode: Any) -> Any:
        return np.full(1, result.data == {"result": "Processed it"}, np.float32)


def test_an_environment_as_a_document_prints_it_is_trained_on(tmp_path: Path, store: Path) -> None:
    made = ToolVecEnv(printed_project(tmp_path), 2, mapping=Process(), tasks=GRADES, max_steps=1, store=store, seed=1)
    env = VecMonitor(made)
    PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu", seed=1).learn(16)
    env.close()
    done = [each for each in outcomes(store) if each[1] != "cancelled"]
    assert {each[1] for each in done} <= {"ok", "budget"}
    assert {each[2] for each in done} == {1.0, -0.5}
