"""Benchmarks that run a whole task by themselves, with `Benchmark.run`, as episodes of the runner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from aenv.bench.bare_world import BareWorld
from aenv.bench.base import Benchmark, TaskWork, WorkOf
from aenv.errors import EnvironmentError
from aenv.rollout.attempt import Agent
from aenv.rollout.budget import BudgetName, BudgetSpent
from aenv.rollout.episode import Episode
from aenv.rollout.task_set import TaskSet
from aenv.rollout.world import World
from aenv.schema.tasks import Task


class WholeJobs(TaskSet):
    """Tasks of such a benchmark."""

    def __init__(self, benchmark: Benchmark, work: WorkOf) -> None:
        super().__init__([], benchmark.name)
        self._benchmark = benchmark
        self._work = work

    async def tasks(self) -> Sequence[Task]:
        return [Task(id=task) for task in await asyncio.to_thread(self._benchmark.tasks)]

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[World]:
        yield _FinishedJob(self._benchmark.name, self._work(task.id))

    async def close(self) -> None:
        await self._benchmark.close()


class _FinishedJob(BareWorld):
    """The world of a task: its reward is that of the benchmark."""

    def __init__(self, name: str, work: TaskWork) -> None:
        super().__init__(name)
        self._work = work

    async def call_reward(
        self, arguments: dict[str, Any] | None = None, timeout: float | None = None, *, name: str | None = None
    ) -> float:
        if self._work.error is not None and not self._work.is_complete:
            raise self._work.error
        result = self._work.result
        if result.reward is None:
            error = EnvironmentError(result.error or "the benchmark gave no reward")
            error.fault = result.fault or "env"
            raise error
        return result.reward


def whole_job(benchmark: Benchmark, work: WorkOf) -> Agent:
    """Return an agent that lets the benchmark run the whole task."""

    async def agent(episode: Episode) -> None:
        own = work(episode.task.id)
        own.result = await benchmark.run(replace(own.job, recorder=episode.recorder))
        own.is_complete = True
        if own.result.outcome in ("timeout", "budget"):
            budget: BudgetName = "steps" if own.result.outcome == "budget" else "seconds"
            raise BudgetSpent(budget, own.result.error)

    return agent
