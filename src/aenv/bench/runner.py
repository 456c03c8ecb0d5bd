"""Run the tasks of a benchmark as episodes of a rollout, and save each result as soon as it is known."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aenv import plugins
from aenv.bench.agents import bench_agent, kept
from aenv.bench.base import BenchJob, Benchmark, Result, TaskWork
from aenv.bench.bench_episodes import BenchEpisodes, result_of
from aenv.bench.call_list import calls_of
from aenv.bench.limits import AgentLimits
from aenv.bench.runs import BenchRun, RunRequest
from aenv.bench.whole_jobs import whole_job
from aenv.errors import UsageError
from aenv.rollout.attempt import Plan
from aenv.rollout.runs.concurrency import Fixed
from aenv.rollout.runs.rollout_run import Rollout
from aenv.rollout.task_sources import PLUGINS
from aenv.schema.tasks import TaskLimits
from aenv.tracing.logging import getLogger
from aenv.trajectory import TrajectoryStore

log = getLogger("bench")

CALL_SECONDS = 3600.0
"""Time limit of a tool call."""

Progress = Callable[[Result, int, int], None]
"""Receives each result, the number of results so far, and the total number."""


async def run_all(benchmark: Benchmark, run: BenchRun, *, parallel: int, progress: Progress) -> None:
    """Run the tasks that have no result yet, or a result without a reward."""
    known = {result.task: result for result in run.results()}
    wanted = list(await asyncio.to_thread(benchmark.tasks))[: run.request.limit]
    left = [task for task in wanted if task not in known or not known[task].is_final]
    done = len(wanted) - len(left)

    def finished(work: TaskWork) -> None:
        nonlocal done
        result = work.result
        result.outcome = result.outcome or ("graded" if result.counts else "failed")
        result.outputs |= {"began": time.time() - result.seconds["all"], "load": os.getloadavg()[0]}
        run.save(result)
        done += 1
        progress(result, done, len(wanted))

    jobs = [_job(run, task) for task in left]
    whole = type(benchmark).run is not Benchmark.run
    await _run(benchmark, jobs, run.trajectories, run.request, parallel, finished, whole=whole)


async def run_job(benchmark: Benchmark, job: BenchJob) -> Result:
    """Run one task, and return its result.

    Raises:
        Exception: there is no reward.
    """
    ended: list[TaskWork] = []
    with tempfile.TemporaryDirectory(prefix="aenv-bench-") as folder:
        request = RunRequest(benchmark.name, job.agent, dict(benchmark.given))
        await _run(benchmark, [job], Path(folder), request, 1, ended.append)
    [work] = ended
    if work.error is not None and not work.result.counts:
        raise work.error
    return work.result


async def grade_all(
    benchmark: Benchmark, run: BenchRun, tasks: Collection[str], *, parallel: int, progress: Progress
) -> None:
    """Grade finished tasks again: the given ones, or all."""
    known = [result.task for result in run.results()]
    for task in tasks:
        if task not in known:
            raise UsageError(f"the run has no task {task!r}", {"hint": f"It has: {', '.join(known)}"})
    left = [task for task in known if not tasks or task in tasks]
    room = asyncio.Semaphore(parallel)
    done = 0

    async def one(task: str) -> None:
        nonlocal done
        async with room:
            result = await _graded(benchmark, _job(run, task))
        run.save(result)
        done += 1
        progress(result, done, len(left))

    try:
        async with asyncio.TaskGroup() as group:
            for task in left:
                group.create_task(one(task))
    finally:
        await benchmark.close()


async def _graded(benchmark: Benchmark, job: BenchJob) -> Result:
    began, clock = time.time(), time.monotonic()
    try:
        result = await benchmark.grade(job)
    except Exception as error:
        log.debug("%s", job.task, exc_info=True)
        result = Result(job.task).failed(error)
    result.outcome = result.outcome or ("graded" if result.counts else "failed")
    result.seconds["all"] = round(time.monotonic() - clock, 3)
    result.outputs |= {"began": began, "load": os.getloadavg()[0]}
    return result


def _job(run: BenchRun, task: str) -> BenchJob:
    request = run.request
    limits = AgentLimits.of_task(request.limits, request.task_limits.get(task))
    return BenchJob(task, request.agent, run.task_folder(task), limits)


async def _run(
    benchmark: Benchmark,
    jobs: Sequence[BenchJob],
    place: Path,
    request: RunRequest,
    parallel: int,
    finished: Callable[[TaskWork], None],
    *,
    whole: bool = False,
) -> None:
    """Run jobs as episodes, recorded in the store at ``place``. ``whole``: the benchmark itself runs each of them."""
    if not jobs:
        await benchmark.close()
        return
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
    episodes = BenchEpisodes(benchmark, jobs, whole=whole)
    if whole:
        agent, about = kept(whole_job(benchmark, episodes.work), episodes.work), {"name": request.agent}
    else:
        agent, about = bench_agent(benchmark, request.agent, episodes.work)
    with TrajectoryStore.open(place) as store:
        plan = Plan(
            _run_id(store, benchmark.name), episodes, agent, about, Fixed(parallel), TaskLimits(),
            labels={"benchmark": benchmark.name}, call_seconds=CALL_SECONDS, separate_tasks=True,
        )  # fmt: skip
        rollout = Rollout(
            plan, request=_asked(benchmark, request), samples=1, retries=0, limit=None, store=store, repeat=True
        )
        async with aclosing(rollout.results()) as results:
            async for episode in results:
                work = episodes.work(episode.task)
                if not work.result.calls:
                    performed = "solution" in about
                    work.result.calls = calls_of(store.events(episode.episode), performed=performed)
                result_of(work, episode, episodes.limits(episode.task))
                finished(work)


def _run_id(store: TrajectoryStore, name: str) -> str:
    """Return the id of the run in its store, which has only one; the folder may have been renamed since."""
    known = store.runs(limit=1)
    return known[0].id if known else f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _asked(benchmark: Benchmark, request: RunRequest) -> dict[str, Any]:
    """Return the request of the rollout. Its tasks are named so that replays find them."""
    name = benchmark.name
    return {
        "benchmark": name,
        "tasks": f"{name}?{urlencode(request.options)}" if plugins.has(PLUGINS, name) else None,
        "agent": request.agent,
    }
