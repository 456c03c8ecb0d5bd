"""Play one episode of TAU2-Bench with a model behind an OpenAI-compatible endpoint, and return its reward.

A trainer calls `run_agent_return_reward` and sets OPENAI_BASE_URL, OPENAI_API_KEY and, if the endpoint has several
models, OPENAI_MODEL. AReaL wants an object with a method ``run``, and gives each rollout an endpoint: `Tau2Workflow`.
The environment is always released. An episode that could not be played raises, so that a trainer does not count it as a
reward of 0.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any

from aenv.adapters.agents.openai_agents import Speaker
from aenv.sdk.environment import Environment

ENV = "tau2-env@1.0.0"
START_SECONDS = 300.0
OPENING = "Begin."
"""First message to the agent if the user has not said anything yet."""
HANDED_ON = (
    "TAU2_USER_LLM", "TAU2_USER_LLM_API_BASE", "TAU2_USER_LLM_API_KEY", "TAU2_JUDGE_LLM", "TAU2_JUDGE_LLM_API_BASE",
    "TAU2_JUDGE_LLM_API_KEY", "TAU2_SOLO_MODE", "TAU2_MAX_STEPS",
)  # fmt: skip
"""Environment variables that are passed on to the instance."""


async def run_agent_return_reward(
    data: dict[str, Any], *, environment: str = ENV, base_url: str | None = None, api_key: str | None = None
) -> float:
    """Play the task ``data["task_id"]`` of the domain ``data["domain"]``, and return its reward.

    Args:
        data: The row of the task.
        environment: Another version of tau2-env, or the path of a project with the same functions.
        base_url: The model's endpoint, if it is not that of OPENAI_BASE_URL.
        api_key: Its key, if it is not that of OPENAI_API_KEY.
    """
    variables = {name: os.environ[name] for name in HANDED_ON if os.environ.get(name)}
    variables["TAU2_DOMAIN"] = str(data.get("domain") or "telecom")
    if data.get("task_id") not in (None, ""):
        variables["TAU2_TASK_ID"] = str(data["task_id"])
    async with Environment(environment, environment_variables=variables, startup_timeout=START_SECONDS) as env:
        await _play(env, base_url, api_key)
        reward = await env.call_reward({}, timeout=START_SECONDS)
    return float(reward["total_reward"])


class Tau2Workflow:
    """Episodes of TAU2-Bench as an agent workflow of AReaL, which makes the object from its name and arguments.

    Example:
        ```python
        trainer.train(workflow="aenv.examples.tau2_rl.agent.Tau2Workflow")
        ```
    """

    def __init__(self, environment: str = ENV) -> None:
        self.environment = environment

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        """Play the task of a row with the endpoint ``base_url`` and ``api_key`` of the rollout; return the reward."""
        return await run_agent_return_reward(
            data, environment=self.environment, base_url=extra.get("base_url"), api_key=extra.get("api_key")
        )


async def _play(env: Environment, base_url: str | None, api_key: str | None) -> None:
    """Play turn by turn until the episode is over, the steps are used up, or there is no user (solo mode)."""
    prompt: str = await env.call_function("tau2_get_system_prompt", {})
    speaker = await Speaker.open(env, "customer service", prompt, base_url=base_url, api_key=api_key)
    status: dict[str, Any] = await env.call_function("tau2_get_status", {})
    while not status["done"] and status["step"] < status["max_steps"]:
        words = await speaker.answer(status["last_observation"] or OPENING)
        status = await env.call_function("tau2_get_status", {})
        if status["done"] or status["environment"]["solo_mode"]:
            break
        await env.call_function("tau2_send_message", {"message": words})
        status = await env.call_function("tau2_get_status", {})
    if not status["done"]:
        await env.call_function("tau2_done", {}, timeout=START_SECONDS)


def main() -> None:
    """Play one task and print its reward."""
    parser = argparse.ArgumentParser(description="Play one task of TAU2-Bench.")
    parser.add_argument("--domain", default="telecom")
    parser.add_argument("--task_id", default="", help="default: the first of the domain")
    chosen = parser.parse_args()
    reward = asyncio.run(run_agent_return_reward({"domain": chosen.domain, "task_id": chosen.task_id}))
    sys.stdout.write(f"{reward}\n")


if __name__ == "__main__":
    main()
