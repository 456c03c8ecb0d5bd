"""Benchmarks whose built-in environments know their tasks and how each is solved.

Such an environment has a function that lists its tasks, one that tells the steps of a solution (each a tool and its
arguments), and a reward. So two agents come for free: one that does these steps through the tools, as any agent would,
and one that does nothing. Others are programs of this machine.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from aenv.authoring.failure_reward import failure_reason
from aenv.bench import agent_bridge
from aenv.bench.base import FAILURE, BenchJob, Benchmark, Result
from aenv.errors import EnvironmentError
from aenv.sdk.environment import Environment

START_SECONDS = 300.0
ENDPOINTS = ("TAU2_USER_LLM_API_BASE", "TAU2_USER_LLM_API_KEY", "TAU2_JUDGE_LLM_API_BASE", "TAU2_JUDGE_LLM_API_KEY")
"""Variables that are handed on to instances, and so are in no record of a run."""


class BuiltInBenchmark(Benchmark):
    """Tasks of a built-in environment."""

    agents: ClassVar[Mapping[str, str]] = {
        "gold": "does what solves the task",
        "nop": "does nothing",
        "CMD": "a program of this machine, with the instance's tools at $AENV_TASK_URL and $AENV_TASK_MCP_URL",
    }
    env: ClassVar[str]
    listing: ClassVar[str]
    """The function that lists the tasks."""
    solution: ClassVar[str] = "get_solution"
    players: ClassVar[Mapping[str, Mapping[str, Any]]] = {"gold": {}}
    """The agents that do what this function tells, and what it is asked with."""
    score: ClassVar[str] = "score"
    """The number in the reward."""
    _tasks: Sequence[str] | None = None

    def tasks(self) -> Sequence[str]:
        """As the environment lists them, or those that were asked for."""
        if self._tasks is None:
            named = [task.strip() for task in self.given.get("tasks", "").split(",") if task.strip()]
            self._tasks = named or self._listed()
        return self._tasks

    def _listed(self) -> list[str]:
        async def ask() -> list[str]:
            async with self._opened({}) as env:
                found: list[str] = await env.call_function(self.listing, self.to_list(), timeout=START_SECONDS)
                return found

        with ThreadPoolExecutor(1) as thread:  # whoever asks may be in an event loop
            return thread.submit(lambda: asyncio.run(ask())).result()

    def to_list(self) -> dict[str, Any]:
        """The arguments of the function that lists the tasks."""
        return {}

    @abstractmethod
    def variables(self, task: str) -> dict[str, str]:
        """What makes an instance be about a task."""

    async def instruction(self, env: Environment) -> str:
        """What an agent is told."""
        task: dict[str, Any] = await env.call_function("get_task", {})
        return str(task["instruction"])

    async def finish(self, env: Environment) -> None:
        """Say that the agent is done, where that has to be said."""
        return

    def _opened(self, variables: dict[str, str]) -> Environment:
        return Environment(self.env, environment_variables=variables, startup_timeout=START_SECONDS)

    async def run(self, job: BenchJob) -> Result:
        """Have the agent do it, then ask for the reward."""
        result = Result(job.task)
        clock = time.monotonic()
        async with self._opened(self.variables(job.task)) as env:
            result.seconds["start"] = _since(clock)
            clock = time.monotonic()
            if job.agent in self.players:
                await self._solve(env, result, self.players[job.agent])
            elif job.agent != "nop":
                await agent_bridge.do(job, env, await self.instruction(env), result.calls.append)
            await self.finish(env)
            result.seconds["agent"] = _since(clock)
            clock = time.monotonic()
            answer = await env.call_reward({}, timeout=START_SECONDS)
            result.seconds["grade"] = _since(clock)
        destroyed = failure_reason(answer)
        if destroyed is not None:
            result.reward, result.fault, result.error = FAILURE, "policy", destroyed
            return result
        result.reward = float(answer[self.score])
        if answer.get("do_nothing_reward") is not None:
            result.outputs["do_nothing"] = float(answer["do_nothing_reward"])
        return result

    async def _solve(self, env: Environment, result: Result, asked: Mapping[str, Any]) -> None:
        steps: list[dict[str, Any]] = await env.call_function(self.solution, dict(asked), timeout=START_SECONDS)
        if not steps:
            raise EnvironmentError(f"{result.task}: no solution is known")
        for step in steps:
            done = await env.call_tool(step["tool"], step["arguments"], timeout=START_SECONDS)
            result.calls.append({**step, "result": done.text, "is_error": done.is_error})


class Tau2(BuiltInBenchmark):
    """Customer service, by a policy and with tools."""

    name = "tau2"
    summary = "TAU2-Bench: customer service with tools, a policy and a user"
    agents: ClassVar[Mapping[str, str]] = {
        "gold": BuiltInBenchmark.agents["gold"],
        "wrong": "hangs up before the last step that matters, or changes what should stay as it is",
        "nop": BuiltInBenchmark.agents["nop"],
        "CMD": BuiltInBenchmark.agents["CMD"],
    }
    players: ClassVar[Mapping[str, Mapping[str, Any]]] = {"gold": {}, "wrong": {"wrong": True}}
    options: ClassVar[Mapping[str, str]] = {
        "domain": "airline, retail, telecom, banking or mock; airline unless told",
        "split": "base, train, test or another of the domain's; base unless told",
        "tasks": "only these, divided by commas",
        "user": "the user's model, like openai/NAME, at $TAU2_USER_LLM_API_BASE; one that follows a script unless told",
        "judge": "the model that judges what was said, at $TAU2_JUDGE_LLM_API_BASE; none to do without",
    }
    env = "tau2-env@1.0.0"
    listing = "tau2_list_tasks"
    solution = "tau2_get_solution"
    score = "total_reward"

    def to_list(self) -> dict[str, Any]:
        """Of which domain."""
        return {"domain": self._domain, "split": self.given.get("split", "")}

    @property
    def _domain(self) -> str:
        return self.given.get("domain") or "airline"

    def variables(self, task: str) -> dict[str, str]:
        """The domain, the task and the models."""
        chosen = {"TAU2_DOMAIN": self._domain, "TAU2_TASK_ID": task, "TAU2_MAX_STEPS": "200"}
        for option in ("user", "judge"):
            if self.given.get(option):
                chosen[f"TAU2_{option.upper()}_LLM"] = self.given[option]
        return chosen | {name: os.environ[name] for name in ENDPOINTS if os.environ.get(name)}

    async def instruction(self, env: Environment) -> str:
        """The policy, and what the user has said first."""
        prompt: str = await env.call_function("tau2_get_system_prompt", {})
        status: dict[str, Any] = await env.call_function("tau2_get_status", {})
        return f"{prompt}\n\n{status['last_observation']}"

    async def finish(self, env: Environment) -> None:
        """Hang up."""
        await env.call_function("tau2_done", {}, timeout=START_SECONDS)


class Bfcl(BuiltInBenchmark):
    """Function calls in many turns."""

    name = "bfcl"
    summary = "BFCL multi-turn: a user's requests, turn by turn, done with the tools of simulated systems"
    options: ClassVar[Mapping[str, str]] = {
        "category": "base, miss_func, miss_param or long_context; base unless told",
        "tasks": "only these, divided by commas",
    }
    env = "bfcl@1.0.0"
    listing = "list_tasks"

    def to_list(self) -> dict[str, Any]:
        """Of which category."""
        return {"category": self.given.get("category") or "base"}

    def variables(self, task: str) -> dict[str, str]:
        """The task."""
        return {"BFCL_TASK": task}


class ReasoningGym(BuiltInBenchmark):
    """Puzzles."""

    name = "reasoning-gym"
    summary = "Reasoning Gym: one question of each of 106 kinds"
    options: ClassVar[Mapping[str, str]] = {
        "seed": "which series of questions; 0 unless told",
        "index": "which question of each series; 0 unless told",
        "tasks": "only these datasets, divided by commas",
    }
    env = "reasoning-gym@1.0.0"
    listing = "list_datasets"

    def variables(self, task: str) -> dict[str, str]:
        """The dataset, and which question of it."""
        return {
            "RG_DATASET": task,
            "RG_SEED": self.given.get("seed") or "0",
            "RG_INDEX": self.given.get("index") or "0",
        }


def _since(clock: float) -> float:
    return round(time.monotonic() - clock, 3)
