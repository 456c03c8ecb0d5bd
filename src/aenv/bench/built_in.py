"""Benchmarks with built-in environments that know their tasks and solutions.

Such an environment has a function that lists its tasks, a function that returns the steps of a solution (tool calls
with arguments), and a reward. So every benchmark has two agents: `gold` calls these tools as any agent would, `nop`
does nothing. Other agents are programs on this machine.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

from aenv.bench.base import Benchmark, NoSolution, WorkOf
from aenv.rollout.agents.scripted import nop
from aenv.rollout.attempt import Agent
from aenv.rollout.episode import Episode
from aenv.rollout.task_set import TaskSet
from aenv.sdk.environment import Environment

START_SECONDS = 300.0
ENDPOINTS = ("TAU2_USER_LLM_API_BASE", "TAU2_USER_LLM_API_KEY", "TAU2_JUDGE_LLM_API_BASE", "TAU2_JUDGE_LLM_API_KEY")
"""Environment variables that are passed to instances, but not saved with a run."""


class BuiltInBenchmark(Benchmark):
    """Base class of benchmarks with a built-in environment."""

    agents: ClassVar[Mapping[str, str]] = {
        "gold": "performs the known solution",
        "nop": "does nothing",
        "CMD": "a program on this machine, with the instance's tools at $AENV_TASK_URL and $AENV_TASK_MCP_URL",
    }
    env: ClassVar[str]
    listing: ClassVar[str]
    """Name of the function that lists the tasks."""
    solution: ClassVar[str] = "get_solution"
    players: ClassVar[Mapping[str, Mapping[str, Any]]] = {"gold": {}}
    """Agents that perform a solution, with the arguments of the function that returns it."""
    score: ClassVar[str] = "score"
    """Key of the number in the reward."""
    _tasks: Sequence[str] | None = None

    def tasks(self) -> Sequence[str]:
        """Return the tasks of the option ``tasks``, else all tasks of the environment."""
        if self._tasks is None:
            named = [task.strip() for task in self.given.get("tasks", "").split(",") if task.strip()]
            self._tasks = named or self._listed()
        return self._tasks

    def _listed(self) -> list[str]:
        async def list_tasks() -> list[str]:
            async with self._opened({}) as env:
                found: list[str] = await env.call_function(self.listing, self.list_arguments(), timeout=START_SECONDS)
                return found

        with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
            return thread.submit(lambda: asyncio.run(list_tasks())).result()

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments of the function that lists the tasks."""
        return {}

    @abstractmethod
    def variables(self, task: str) -> dict[str, str]:
        """Return the environment variables that select the task of an instance."""

    async def instruction(self, env: Environment) -> str:
        """Return the instruction for the agent."""
        task: dict[str, Any] = await env.call_function("get_task", {})
        return str(task["instruction"])

    async def finish(self, env: Environment) -> None:
        """Tell the environment that the agent is done, if it needs that."""
        return

    def _opened(self, variables: dict[str, str]) -> Environment:
        return Environment(self.env, environment_variables=variables, startup_timeout=START_SECONDS)

    def episodes(self, work: WorkOf) -> TaskSet:
        """Return the tasks."""
        from aenv.bench.task_sets import BuiltInTasks  # which imports this

        return BuiltInTasks(self, work)

    def player(self, agent: str, work: WorkOf) -> Agent | None:
        """Return the agent that does nothing, or one that performs a solution."""
        if agent == "nop":
            return nop
        return partial(self._play, self.players[agent]) if agent in self.players else None

    async def _play(self, arguments: Mapping[str, Any], episode: Episode) -> None:
        steps = await episode.env.call_function(self.solution, dict(arguments), timeout=START_SECONDS)
        if not steps:
            raise NoSolution(f"{episode.task.id}: no solution is known")
        for step in steps:
            await episode.call_tool(step["tool"], step["arguments"])


class Tau2(BuiltInBenchmark):
    """TAU2-Bench: customer service with tools and a policy."""

    name = "tau2"
    summary = "TAU2-Bench: customer service with tools, a policy and a user"
    agents: ClassVar[Mapping[str, str]] = {
        "gold": BuiltInBenchmark.agents["gold"],
        "wrong": "stops before the last necessary step, or changes data that should not change",
        "nop": BuiltInBenchmark.agents["nop"],
        "CMD": BuiltInBenchmark.agents["CMD"],
    }
    players: ClassVar[Mapping[str, Mapping[str, Any]]] = {"gold": {}, "wrong": {"wrong": True}}
    options: ClassVar[Mapping[str, str]] = {
        "domain": "airline, retail, telecom, banking or mock; default: airline",
        "split": "base, train, test or another split of the domain; default: base",
        "tasks": "only these tasks, separated by commas",
        "user": "model of the user, like openai/NAME, at $TAU2_USER_LLM_API_BASE; default: a scripted user",
        "judge": "model that judges the conversation, at $TAU2_JUDGE_LLM_API_BASE; 'none' for no judge",
    }
    env = "tau2-env@1.0.0"
    listing = "tau2_list_tasks"
    solution = "tau2_get_solution"
    score = "total_reward"

    def list_arguments(self) -> dict[str, Any]:
        """Return the domain and the split."""
        return {"domain": self._domain, "split": self.given.get("split", "")}

    @property
    def _domain(self) -> str:
        return self.given.get("domain") or "airline"

    def variables(self, task: str) -> dict[str, str]:
        """Return the domain, the task and the models."""
        chosen = {"TAU2_DOMAIN": self._domain, "TAU2_TASK_ID": task, "TAU2_MAX_STEPS": "200"}
        for option in ("user", "judge"):
            if self.given.get(option):
                chosen[f"TAU2_{option.upper()}_LLM"] = self.given[option]
        return chosen | {name: os.environ[name] for name in ENDPOINTS if os.environ.get(name)}

    async def instruction(self, env: Environment) -> str:
        """Return the policy and the user's first message."""
        prompt: str = await env.call_function("tau2_get_system_prompt", {})
        status: dict[str, Any] = await env.call_function("tau2_get_status", {})
        return f"{prompt}\n\n{status['last_observation']}"

    async def finish(self, env: Environment) -> None:
        """End the conversation."""
        await env.call_function("tau2_done", {}, timeout=START_SECONDS)


class Bfcl(BuiltInBenchmark):
    """BFCL multi-turn: function calls over several turns."""

    name = "bfcl"
    summary = "BFCL multi-turn: requests of a user, turn by turn, with the tools of simulated systems"
    options: ClassVar[Mapping[str, str]] = {
        "category": "base, miss_func, miss_param or long_context; default: base",
        "tasks": "only these tasks, separated by commas",
    }
    env = "bfcl@1.0.0"
    listing = "list_tasks"

    def list_arguments(self) -> dict[str, Any]:
        """Return the category."""
        return {"category": self.given.get("category") or "base"}

    def variables(self, task: str) -> dict[str, str]:
        """Return the task."""
        return {"BFCL_TASK": task}


class ReasoningGym(BuiltInBenchmark):
    """Reasoning Gym: puzzles."""

    name = "reasoning-gym"
    summary = "Reasoning Gym: one question of each of 106 kinds"
    options: ClassVar[Mapping[str, str]] = {
        "seed": "seed of the series of questions; default: 0",
        "index": "index of the question in each series; default: 0",
        "tasks": "only these datasets, separated by commas",
    }
    env = "reasoning-gym@1.0.0"
    listing = "list_datasets"

    def variables(self, task: str) -> dict[str, str]:
        """Return the dataset and the question."""
        return {
            "RG_DATASET": task,
            "RG_SEED": self.given.get("seed") or "0",
            "RG_INDEX": self.given.get("index") or "0",
        }
