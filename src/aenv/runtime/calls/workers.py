"""Run an environment's code off the server's loop: threads for sync functions, a loop of its own for async ones.

The server's loop runs none of it, so a tool that blocks, async or not, never keeps /health or another call from
being answered. The threads are daemons: a tool that never returns cannot keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any

from aenv.authoring.call import Call, serve

MAX_THREADS = 256  # further calls wait for a thread

Work = Callable[[], Any]

PATIENCE = 0.0003
"""Seconds for which the loop itself blocks on a function that has been brief so far.

Returning a result through the loop takes two more turns of it and four system calls, which for a brief function is most
of the cost of the call.
"""
PARK_SECONDS = 5.0
"""For an idle thread to end."""
RETRY = 100  # calls after which a function that was not brief is tried again


class WorkerJob:
    """A function to call in a thread."""

    __slots__ = ("_guard", "call", "done", "error", "future", "loop", "result", "work")

    def __init__(self, work: Work, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        self.work: Work | None = work
        self.call = call
        self.loop = loop
        self.future: asyncio.Future[Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()
        self._guard = threading.Lock()

    def run(self) -> None:
        """Call the function, in the thread, and pass the result to the loop."""
        work, self.work = self.work, None
        context = contextvars.Context()
        context.run(serve, self.call)
        try:
            assert work is not None
            if not self.call.cancelled:
                self.result = context.run(work)
        except BaseException as raised:  # also SystemExit: a tool must not end the server
            self.error = _presentable(raised)
        with self._guard:
            self.done.release()
            future = self.future
        if future is not None:
            _resolve(self.loop, future, self.result, self.error)

    def promise(self) -> asyncio.Future[Any] | None:
        """Return a future for the result, on the loop; None if the result is there already."""
        with self._guard:
            if not self.done.locked():
                return None
            self.future = self.loop.create_future()
            return self.future


class Brevity:
    """Tracks whether a function has been brief so far."""

    __slots__ = ("_calls_to_go",)

    def __init__(self) -> None:
        self._calls_to_go = 0

    def patience(self) -> float:
        """Return how long to block on its next call."""
        if self._calls_to_go:
            self._calls_to_go -= 1
            return 0.0
        return PATIENCE

    def exceeded(self) -> None:
        """Note that a call took longer."""
        self._calls_to_go = RETRY


class Workers:
    """Runs calls off the server's loop."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._jobs: SimpleQueue[WorkerJob | None] = SimpleQueue()
        self._max = max_threads
        self._threads = 0
        self._busy = 0  # jobs queued and not done; like _threads, changed on the server's loop only
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._started: list[threading.Thread] = []

    async def run(self, work: Work, call: Call, brevity: Brevity | None = None) -> Any:
        """Call ``work()`` in a thread; return its result. Cancelling marks the call as cancelled; the thread runs
        on.
        """
        job = WorkerJob(work, call, asyncio.get_running_loop())
        self._busy += 1
        if self._busy > self._threads and self._threads < self._max:
            self._threads += 1
            thread = threading.Thread(target=self._work, name=f"aenv-tool-{self._threads}", daemon=True)
            self._started.append(thread)
            thread.start()
        self._jobs.put(job)
        patience = brevity.patience() if brevity is not None else 0.0
        if patience and not job.done.acquire(timeout=patience):
            assert brevity is not None
            brevity.exceeded()
            patience = 0.0
        if not patience:
            future = job.promise()
            if future is not None:
                return await self._wait(job, future)
        self._busy -= 1
        if job.error is not None:
            raise job.error
        return job.result

    async def _wait(self, job: WorkerJob, future: asyncio.Future[Any]) -> Any:
        future.add_done_callback(self._done)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            job.call.cancelled = True
            raise

    async def run_async(self, start: Callable[[], Coroutine[Any, Any, Any]], call: Call) -> Any:
        """Await ``start()`` on the environment's own loop; return the result. Cancelling cancels it there."""
        theirs = self._environment_loop()
        ours = asyncio.get_running_loop()
        future: asyncio.Future[Any] = ours.create_future()
        task: asyncio.Task[Any] | None = None

        def begin() -> None:
            nonlocal task
            context = contextvars.Context()
            context.run(serve, call)
            try:
                task = theirs.create_task(start(), context=context)
            except BaseException as error:
                _resolve(ours, future, None, _presentable(error))
                return
            task.add_done_callback(finish)

        def finish(done: asyncio.Task[Any]) -> None:
            if done.cancelled():
                error: BaseException | None = asyncio.CancelledError()
            else:
                error = done.exception()
            _resolve(ours, future, None if error else done.result(), _presentable(error) if error else None)

        theirs.call_soon_threadsafe(begin)
        try:
            return await future
        except asyncio.CancelledError:
            call.cancelled = True
            theirs.call_soon_threadsafe(lambda: task.cancel() if task is not None else None)
            raise

    def park(self) -> None:
        """End all threads, which are idle, and wait for that. Later calls start them again.

        The tasks of the environment's own loop stay, and go on then.
        """
        started, self._started = self._started, []
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0
        for thread in started:
            thread.join(PARK_SECONDS)
        if self._loop is not None and self._loop_thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(PARK_SECONDS)
            self._loop_thread = None

    @property
    def environment_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of the environment's async functions, if there is one."""
        return self._loop

    def close(self) -> None:
        """End idle threads; busy ones are daemons and end with the process."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0
        if self._loop is not None:
            loop, thread = self._loop, self._loop_thread
            self._loop = self._loop_thread = None  # before it stops, so that its thread closes it
            if thread is None:
                loop.close()
            else:
                loop.call_soon_threadsafe(loop.stop)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job.run()
            del job  # or its result would live while the thread is idle

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._busy -= 1
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not warn when the caller is gone

    def _environment_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if self._loop_thread is None:
            thread = threading.Thread(target=self._run_loop, args=(self._loop,), name="aenv-async", daemon=True)
            self._loop_thread = thread
            thread.start()
        return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        if self._loop is not loop:  # closed, and not parked
            loop.close()


def _resolve(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    def resolve() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:  # the server's loop has ended
        return


def _presentable(error: BaseException) -> BaseException:
    """Return an exception that the loop can carry: some would end it, or be mistaken for its own."""
    if isinstance(error, StopIteration | asyncio.CancelledError | SystemExit | KeyboardInterrupt | GeneratorExit):
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
