"""The tasks of a run as episodes: the benchmark opens and grades them, and here their results are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aenv.bench.base import FAILURE, BenchJob, Benchmark, Result, TaskWork
from aenv.bench.limits import limit_reached
from aenv.bench.whole_jobs import WholeJobs
from aenv.rollout.result import EpisodeResult
from aenv.rollout.task_set import TaskSet
from aenv.rollout.world import World
from aenv.schema.tasks import Task, TaskLimits, TaskStep


class BenchEpisodes(TaskSet):
    """Tasks of a benchmark that are left to run, with the work on each of them."""

    def __init__(self, benchmark: Benchmark, jobs: Iterable[BenchJob], *, whole: bool) -> None:
        """``whole``: the benchmark runs its tasks by itself, with `Benchmark.run`."""
        self._work = {job.task: TaskWork(job, Result(job.task)) for job in jobs}
        self._inner = WholeJobs(benchmark, self.work) if whole else benchmark.episodes(self.work)
        self._whole = whole
        super().__init__([], self._inner.environment)

    def work(self, task: str) -> TaskWork:
        """Return the work on a task."""
        return self._work[task]

    def limits(self, task: str) -> TaskLimits:
        """Return the budget of a task."""
        return next((each.limits for each in self._tasks if each.id == task), TaskLimits())

    async def tasks(self) -> Sequence[Task]:
        known = {task.id: task for task in await self._inner.tasks()}
        self._tasks = [self._limited(known[task]) for task in self._work if task in known]
        return self._tasks

    def _limited(self, task: Task) -> Task:
        """Return the task with the limits of the run, else its own. A benchmark that runs it itself limits it too."""
        limits = self._work[task.id].job.limits
        return task if self._whole else task.model_copy(update={"limits": limits.as_budget(task.limits.seconds)})

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[World]:
        work = self._work[task.id]
        try:
            async with self._inner.open(task) as world:
                yield world
        except Exception as error:
            work.error = error
            raise

    async def prepare(self, world: World, task: Task) -> str:
        return await self._inner.prepare(world, task)

    async def solution(self, world: World, task: Task) -> list[TaskStep]:
        return await self._inner.solution(world, task)

    async def finish(self, world: World, task: Task) -> None:
        await self._inner.finish(world, task)

    def score(self, reward: Any) -> float | None:
        return self._inner.score(reward)

    def check_score(self, reward: Any) -> None:
        self._inner.check_score(reward)

    async def close(self) -> None:
        await self._inner.close()


def result_of(work: TaskWork, episode: EpisodeResult, limits: TaskLimits) -> Result:
    """Complete the result of a task from its episode."""
    result = work.result
    result.seconds["all"] = round(episode.seconds, 3)
    if work.is_complete:
        return result
    if episode.score is None:
        return result.failed(work.error) if work.error is not None else _without_reward(result, episode)
    result.reward = episode.score
    if episode.failure_reason is not None:
        result.reward, result.fault, result.error = FAILURE, "policy", episode.failure_reason
        result.outcome = "destroyed"
    elif episode.budget is not None:
        result.outcome, text = limit_reached(limits, episode.budget)
        result.fault, result.error = "timeout", result.error or text
    if isinstance(episode.reward, Mapping) and episode.reward.get("do_nothing_reward") is not None:
        result.outputs["do_nothing"] = float(episode.reward["do_nothing_reward"])
    return result


def _without_reward(result: Result, episode: EpisodeResult) -> Result:
    result.reward, result.outcome = None, "failed"
    result.fault = episode.fault or "infra"  # type: ignore[assignment]
    result.error = episode.error or "the environment has no reward"
    return result
