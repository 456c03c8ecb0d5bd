"""Run the tasks of a benchmark in parallel, and save each result as soon as it is known."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection

from aenv.bench.base import BenchJob, Benchmark, Result
from aenv.bench.runs import BenchRun
from aenv.errors import UsageError
from aenv.tracing.logging import getLogger

log = getLogger("bench")

Work = Callable[[BenchJob], Awaitable[Result]]
Progress = Callable[[Result, int, int], None]
"""Receives each result, the number of results so far, and the total number."""


async def run_all(benchmark: Benchmark, run: BenchRun, *, parallel: int, progress: Progress) -> None:
    """Run the tasks that have no result yet, or a result without a reward."""
    known = {result.task: result for result in run.results()}
    wanted = list(benchmark.tasks())[: run.request.limit]
    left = [task for task in wanted if task not in known or not known[task].counts]
    await _each(benchmark, run, left, len(wanted), benchmark.run, parallel, progress)


async def grade_all(
    benchmark: Benchmark, run: BenchRun, tasks: Collection[str], *, parallel: int, progress: Progress
) -> None:
    """Grade finished tasks again: the given ones, or all."""
    known = [result.task for result in run.results()]
    for task in tasks:
        if task not in known:
            raise UsageError(f"the run has no task {task!r}", {"hint": f"It has: {', '.join(known)}"})
    left = [task for task in known if not tasks or task in tasks]
    await _each(benchmark, run, left, len(left), benchmark.grade, parallel, progress)


async def _each(
    benchmark: Benchmark, run: BenchRun, left: list[str], total: int, do: Work, parallel: int, progress: Progress
) -> None:
    room = asyncio.Semaphore(parallel)
    done = total - len(left)

    async def one(task: str) -> None:
        nonlocal done
        async with room:
            result = await _one(do, BenchJob(task, run.request.agent, run.task_folder(task)))
        run.save(result)
        done += 1
        progress(result, done, total)

    try:
        async with asyncio.TaskGroup() as group:
            for task in left:
                group.create_task(one(task))
    finally:
        await benchmark.close()


async def _one(do: Work, job: BenchJob) -> Result:
    job.folder.mkdir(parents=True, exist_ok=True)
    began, clock = time.time(), time.monotonic()
    try:
        result = await do(job)
    except Exception as error:
        log.debug("%s", job.task, exc_info=True)
        result = Result(job.task).failed(error)
    result.seconds["all"] = round(time.monotonic() - clock, 3)
    result.outputs |= {"began": began, "load": os.getloadavg()[0]}
    return result
