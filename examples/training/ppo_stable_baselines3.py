# PPO with Stable-Baselines3: an agent learns to read where the treasure is and to walk there, in isolated instances.
# Run it: pip install '.[stable-baselines3]' && python examples/training/ppo_stable_baselines3.py [STEPS] [PLOT.png]

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor

from aenv.adapters.trainers.stable_baselines3 import ToolVecEnv
from aenv.adapters.trainers.stepping import StepMapping

HERE = Path(__file__).parent
PLACES = 7


class Corridor(StepMapping):
    """Two actions; the observation is the place, and the side that the instruction names."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0.0, 1.0, (PLACES + 1,), np.float32)

    def first(self, episode):
        return self.seen(PLACES // 2, episode.instruction)

    def call(self, action):
        return "move", {"direction": ("left", "right")[int(action)]}

    def observation(self, result, episode):
        return self.seen(result.data["place"], episode.instruction)

    def seen(self, place, instruction):
        return np.append(np.eye(PLACES)[place], "right" in instruction).astype(np.float32)


class Curve(BaseCallback):
    """Keeps the mean reward of the last 100 episodes after each rollout."""

    def __init__(self):
        super().__init__()
        self.rewards = []

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        ended = [episode["r"] for episode in self.model.ep_info_buffer]
        self.rewards.append(float(np.mean(ended)) if ended else 0.0)


def train(steps: int, folder: Path) -> list[float]:
    """Train, and return the curve."""
    torch.set_num_threads(1)
    env = VecMonitor(ToolVecEnv(str(HERE / "treasure"), 8, mapping=Corridor(), max_steps=10, store=folder))
    curve = Curve()
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, learning_rate=3e-3, seed=1, device="cpu")
    model.learn(steps, callback=curve)
    env.close()
    return curve.rewards


def plot(rewards: list[float], file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.plot([(number + 1) * 32 * 8 for number in range(len(rewards))], rewards)
    pyplot.axhline(0.5, linestyle=":", color="gray", label="by chance, at most")
    pyplot.xlabel("steps")
    pyplot.ylabel("mean reward of 100 episodes")
    pyplot.ylim(0, 1.05)
    pyplot.legend()
    pyplot.savefig(file)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        curve = train(int(sys.argv[1]) if len(sys.argv) > 1 else 8192, Path(place))
    print(f"after {32 * 8} steps: mean reward {curve[0]:.2f}")
    print(f"in the end: mean reward {curve[-1]:.2f}")
    if len(sys.argv) > 2:
        plot(curve, sys.argv[2])
