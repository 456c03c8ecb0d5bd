"""Where the author's code runs: threads for sync functions, a loop of its own for async ones.

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

from aenv.core.call import Call, serve

MAX_THREADS = 256  # more calls than this at a time wait for a thread

Work = Callable[[], Any]
_Job = tuple[Work, Call, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Workers:
    """Runs calls off the server's loop."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._max = max_threads
        self._threads = 0
        self._busy = 0  # jobs given out and not settled; like _threads, touched on the server's loop only
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Work, call: Call) -> Any:
        """The result of ``work()``, called in a thread. Cancelling it marks the call; the thread runs on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._busy += 1
        if self._busy > self._threads and self._threads < self._max:
            self._threads += 1
            threading.Thread(target=self._work, name=f"aenv-tool-{self._threads}", daemon=True).start()
        self._jobs.put((work, call, loop, future))
        try:
            return await future
        except asyncio.CancelledError:
            call.cancelled = True
            raise

    async def run_async(self, start: Callable[[], Coroutine[Any, Any, Any]], call: Call) -> Any:
        """The result of awaiting ``start()`` on the author's loop. Cancelling it cancels that."""
        theirs = self._author_loop()
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
                _settle(ours, future, None, error)
                return
            task.add_done_callback(finish)

        def finish(done: asyncio.Task[Any]) -> None:
            if done.cancelled():
                error: BaseException | None = asyncio.CancelledError()
            else:
                error = done.exception()
            _settle(ours, future, None if error else done.result(), error)

        theirs.call_soon_threadsafe(begin)
        try:
            return await future
        except asyncio.CancelledError:
            call.cancelled = True
            theirs.call_soon_threadsafe(lambda: task.cancel() if task is not None else None)
            raise

    def close(self) -> None:
        """Let idle threads end; busy ones are daemons and end with the process."""
        for _ in range(self._threads):
            self._jobs.put(None)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            work, call, loop, future = job
            context = contextvars.Context()
            context.run(serve, call)
            try:
                result, error = (None if call.cancelled else context.run(work)), None
            except BaseException as raised:  # also SystemExit: a tool must not end the server
                result, error = None, raised
            _settle(loop, future, result, error, self._done)
            del job, work, result, error, future  # or the last result lives as long as the thread idles

    def _done(self) -> None:
        self._busy -= 1

    def _author_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(loop,), name="aenv-async", daemon=True).start()
        return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _settle(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    result: Any,
    error: BaseException | None,
    done: Callable[[], None] = lambda: None,
) -> None:
    def settle() -> None:
        done()
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration | asyncio.CancelledError | SystemExit | KeyboardInterrupt):
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the server's loop has ended; nobody is left to tell
        return
