# Eight episodes at a time, each in an instance of its own. One machine breaks: its episode has no reward, not a 0.
# Run it: python examples/03_rollouts.py

import asyncio
import os
import random
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from aenv import AEnvError, Environment, register_function, register_reward, register_tool
from aenv.testing import running

EPISODES = 8
MOST_GUESSES = 7

# --- the environment: guess a number from 1 to 100

secret = 0
guesses: list[int] = []


@register_function
def start(seed: int) -> None:
    """Begin an episode."""
    global secret
    secret = random.Random(seed).randint(1, 100)
    guesses.clear()


@register_tool
def guess(number: int) -> str:
    """Guess the number; the answer is higher, lower or correct."""
    if os.environ.get("BREAKS"):
        os._exit(1)  # as when the machine loses its power
    guesses.append(number)
    if number == secret:
        return "correct"
    return "higher" if secret > number else "lower"


@register_reward
def score() -> float:
    """1 when the number was found."""
    return 1.0 if secret in guesses else 0.0


# --- the trainer


def policy(seed: int, low: int, high: int) -> int:
    """Somewhere in the middle, more or less: a stand-in for a model."""
    return random.Random(seed * 1000 + low * 10 + high).randint(low, high)


async def rollout(url: str, seed: int) -> float | None:
    """The reward of one episode, or None when it says nothing about the policy."""
    try:
        async with Environment("guess@1.0.0", aenv_url=url) as env:
            await env.call_function("start", {"seed": seed})
            low, high = 1, 100
            for _ in range(MOST_GUESSES):
                number = policy(seed, low, high)
                answer = (await env.call_tool("guess", {"number": number})).text
                if answer == "correct":
                    break
                low, high = (number + 1, high) if answer == "higher" else (low, number - 1)
            return float(await env.call_reward())
    except AEnvError as error:
        if error.fault != "infra":
            raise
        print(f"episode {seed} is lost: {error.message}")
        return None


async def main(urls: list[str]) -> None:
    rewards = await asyncio.gather(*(rollout(url, seed) for seed, url in enumerate(urls)))
    for seed, reward in enumerate(rewards):
        print(f"episode {seed}: {'no reward' if reward is None else reward}")
    valid = [reward for reward in rewards if reward is not None]
    print(f"{len(valid)} of {EPISODES} episodes count; their mean reward is {statistics.mean(valid):.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack, ThreadPoolExecutor(EPISODES) as pool:

        def serve(seed: int) -> str:
            variables = {"BREAKS": "1"} if seed == 5 else {}
            log = Path(folder, f"log-{seed}")
            return stack.enter_context(running(__file__, log=log, variables=variables)).url

        addresses = list(pool.map(serve, range(EPISODES)))
        os.environ["AENV_INSTANCE_URL"] = addresses[0]  # no platform: aenv_url names one of our own servers
        asyncio.run(main(addresses))
