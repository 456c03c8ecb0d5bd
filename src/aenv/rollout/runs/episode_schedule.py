"""Start episodes while there is room, and hand out their results in the order in which they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

from aenv.rollout.attempt import Attempt, PendingAttempt, Plan
from aenv.rollout.result import EpisodeResult
from aenv.rollout.runs.run_progress import Progress


class EpisodeSchedule:
    """Starts episodes while there is room, and hands out results in the order in which they come."""

    def __init__(self, plan: Plan, work: Iterator[PendingAttempt], progress: Progress) -> None:
        self._plan = plan
        self._waiting = deque[PendingAttempt]()  # retries, which go first
        self._work = work
        self._progress = progress
        self._running: set[asyncio.Task[EpisodeResult]] = set()
        self._of: dict[asyncio.Task[EpisodeResult], PendingAttempt] = {}
        self._ready: deque[EpisodeResult] = deque()
        self._failed: BaseException | None = None
        self._changed = asyncio.Event()

    async def results(self) -> AsyncGenerator[EpisodeResult, None]:
        try:
            self._fill()
            while True:
                while self._ready:
                    yield self._ready.popleft()
                if self._failed is not None:
                    raise self._failed
                if not self._running:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            await self._stop()

    def _fill(self) -> None:
        while self._failed is None and len(self._running) < self._plan.concurrency.limit:
            work = self._waiting.popleft() if self._waiting else next(self._work, None)
            if work is None:
                break
            task = asyncio.ensure_future(Attempt(self._plan, work).run())
            self._running.add(task)
            self._of[task] = work
            task.add_done_callback(self._done)
        self._progress.running = len(self._running)

    def _done(self, task: asyncio.Task[EpisodeResult]) -> None:
        self._running.discard(task)
        work = self._of.pop(task)
        self._changed.set()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failed = self._failed or error
            return
        result = task.result()
        self._plan.concurrency.finished()
        if result.final:
            self._progress.finished(result)
            self._ready.append(result)
        else:
            self._progress.retries += 1
            self._progress.failing(result.error)
            self._waiting.append(
                replace(work, attempt=work.attempt + 1, retries_left=work.retries_left - 1, retry_of=result.episode)
            )
        self._fill()

    async def _stop(self) -> None:
        """Stop what runs, and wait until its instances are released."""
        self._failed = self._failed or asyncio.CancelledError()
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self._progress.running = 0
