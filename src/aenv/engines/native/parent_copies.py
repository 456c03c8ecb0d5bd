"""Keep further preloaded parents with the same code, while one alone cannot fork fast enough.

A parent forks one child at a time, and is stopped until that child has given up its rights: some four milliseconds. So
a batch of creates is served by several parents, each under a zygote of its own, on different cores.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

WAITING = 4
"""Forks that wait for every parent before another parent is started."""
MOST_WAITING = 8
"""Forks to request of a parent at the same time. Further ones wait here, for whichever parent is free first."""
IDLE_SECONDS = 5.0
"""Seconds without a fork of a copy after which all copies end."""


def most_parents() -> int:
    """Return how many parents of one key are of use on this machine: each keeps about two cores busy with its forks."""
    return max(2, len(os.sched_getaffinity(0)) // 2)


class ParentCopies(Generic[T]):
    """The parents of one key beside the first. ``make`` starts one, or returns None if it cannot serve the key;
    ``busy`` returns how many forks wait for a parent.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[T | None]],
        end: Callable[[T], object],
        alive: Callable[[T], bool],
        busy: Callable[[T], int],
        *,
        most: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``most``: parents in all, with the first; None: as many as are of use on this machine."""
        self._make = make
        self._end = end
        self._alive = alive
        self._busy = busy
        self._most = (most_parents() if most is None else most) - 1
        self._clock = clock
        self._copies: list[T] = []
        self._loading: set[asyncio.Task[None]] = set()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._used_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def choose(self, first: T) -> T:
        """Return the parent with the fewest waiting forks, and start another one if many wait for each.

        Waits while each has `MOST_WAITING`, until one of these has ended: see `fork_ended`.
        """
        best, waiting = self._least_busy(first)
        while waiting >= MOST_WAITING and self._alive(best) and not self._closed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            self._grow(waiting)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.fork_ended()  # the turn passes to the next
                raise
            best, waiting = self._least_busy(first)
        self._grow(waiting)
        return best

    def fork_ended(self) -> None:
        """Let the next request choose: a fork of one of the parents was answered, or has failed."""
        self._let_in(1)

    def _let_in(self, count: int) -> None:
        while self._queue and count:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1

    def _least_busy(self, first: T) -> tuple[T, int]:
        best, waiting = first, self._busy(first)
        if waiting and self._copies:
            for dead in [copy for copy in self._copies if not self._alive(copy)]:
                self._copies.remove(dead)
                self._end(dead)
            for copy in self._copies:
                if (busy := self._busy(copy)) < waiting:
                    best, waiting = copy, busy
            if best is not first:
                self._used_at = self._clock()
        return best, waiting

    def _grow(self, waiting: int) -> None:
        wanted = min((waiting + len(self._queue)) // WAITING, self._most)
        for _ in range(wanted - len(self._copies) - len(self._loading)):
            self._start()

    def take(self) -> T | None:
        """Take out a copy that is alive, to be the first parent from now on; None if there is none."""
        while self._copies:
            copy = self._copies.pop(0)
            if self._alive(copy):
                return copy
            self._end(copy)
        return None

    async def close(self) -> None:
        """End all copies, and those that are still loading. ``end`` has been called for each when this returns."""
        self._closed = True
        self._most = 0
        if self._timer is not None:
            self._timer.cancel()
        self._end_all()
        self._let_in(len(self._queue))
        loading = list(self._loading)
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)

    def _start(self) -> None:
        task = asyncio.create_task(self._load())
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _load(self) -> None:
        try:
            copy = await self._make()
        except Exception:  # the first parent goes on, and requests report what is wrong
            copy = None
        if copy is None:
            self._most = 0
            return
        self._copies.append(copy)
        self._let_in(MOST_WAITING)
        self._used_at = self._clock()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end_if_idle)

    def _end_if_idle(self) -> None:
        self._timer = None
        left = self._used_at + IDLE_SECONDS - self._clock()
        if left <= 0 and not any(map(self._busy, self._copies)):
            self._end_all()
        elif self._copies:
            self._timer = asyncio.get_running_loop().call_later(max(left, 0.1), self._end_if_idle)

    def _end_all(self) -> None:
        while self._copies:
            self._end(self._copies.pop())
