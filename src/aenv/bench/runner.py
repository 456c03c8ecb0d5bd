"""Runs the tasks of a benchmark, some at a time, and keeps what came of each as it comes."""

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
Said = Callable[[Result, int, int], None]
"""Hears of each result, how many there are now, and how many there will be."""


async def run_all(benchmark: Benchmark, run: BenchRun, *, parallel: int, said: Said) -> None:
    """Run what has no result yet, or one without a reward."""
    known = {result.task: result for result in run.results()}
    wanted = list(benchmark.tasks())[: run.asked.limit]
    left = [task for task in wanted if task not in known or not known[task].counts]
    await _each(benchmark, run, left, len(wanted), benchmark.run, parallel, said)


async def grade_all(benchmark: Benchmark, run: BenchRun, tasks: Collection[str], *, parallel: int, said: Said) -> None:
    """Grade once more what was run; all of it, or these tasks."""
    known = [result.task for result in run.results()]
    for task in tasks:
        if task not in known:
            raise UsageError(f"the run has no task {task!r}", {"hint": f"It has: {', '.join(known)}"})
    left = [task for task in known if not tasks or task in tasks]
    await _each(benchmark, run, left, len(left), benchmark.grade, parallel, said)


async def _each(
    benchmark: Benchmark, run: BenchRun, left: list[str], total: int, do: Work, parallel: int, said: Said
) -> None:
    room = asyncio.Semaphore(parallel)
    done = total - len(left)

    async def one(task: str) -> None:
        nonlocal done
        async with room:
            result = await _one(do, BenchJob(task, run.asked.agent, run.place(task)))
        run.save(result)
        done += 1
        said(result, done, total)

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
