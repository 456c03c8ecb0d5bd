from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainers.treasure import TREASURE, losing_instances, needs, outcomes

needs("ray.rllib", "rllib")
needs("torch", "rllib")

import ray  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner  # noqa: E402

from aenv.adapters.trainers.rllib import register_rllib  # noqa: E402
from tests.trainers.test_gymnasium import Corridor  # noqa: E402

pytestmark = pytest.mark.timeout(250)


@pytest.fixture(scope="module", autouse=True)
def _ray(_own_platform: Path) -> Iterator[None]:
    """Ray with the folders of these tests, and this repository on the path of its workers."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    variables = {"AENV_RUNTIME_DIR": str(_own_platform / "run"), "PYTHONPATH": path}
    ray.init(num_cpus=2, log_to_driver=False, logging_level="error", runtime_env={"env_vars": variables})
    yield
    ray.shutdown()


def configured(store: Path, runners: int = 0) -> PPOConfig:
    """Return a configuration that trains on one task, which the observations need not name."""
    given = {
        "environment": TREASURE, "mapping": Corridor(), "max_steps": 10, "store": str(store),
        "tasks": [{"id": "right", "variables": {"TREASURE": "right"}}],
    }  # fmt: skip
    return (
        PPOConfig()
        .environment(register_rllib(), env_config=given)
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=2, rollout_fragment_length=32)
        .training(train_batch_size=64, minibatch_size=32, num_epochs=2, lr=0.01)
        .fault_tolerance(restart_failed_sub_environments=True)
        .debugging(seed=1, log_level="ERROR")
    )


def test_ppo_samples_on_a_worker_and_learns_from_the_environments_rewards(store: Path) -> None:
    algorithm = configured(store, runners=1).build_algo()
    try:
        found = [algorithm.train() for _ in range(2)]
    finally:
        algorithm.stop()
    assert found[-1]["num_env_steps_sampled_lifetime"] >= 128
    assert 0.0 <= found[-1]["env_runners"]["episode_return_mean"] <= 1.0
    ended = [each for each in outcomes(store) if each[1] in ("ok", "budget")]
    assert ended
    assert {score for _, _, score in ended} <= {0.0, 1.0}


def test_an_episode_that_is_lost_is_dropped_and_no_reward_of_0(store: Path) -> None:
    runner = SingleAgentEnvRunner(config=configured(store))
    try:
        assert runner.sample(num_episodes=2, random_actions=True)
        with losing_instances(2):
            episodes = runner.sample(num_episodes=4, random_actions=True)
    finally:
        runner.stop()
    graded = [each for each in outcomes(store) if each[1] in ("ok", "budget")]
    lost = [each for each in outcomes(store) if each[1] == "infra"]
    assert len(lost) == 2
    assert all(score is None for _, _, score in lost)
    assert len(episodes) == 4
    assert all(episode.is_done for episode in episodes)
    assert len(graded) >= 6
