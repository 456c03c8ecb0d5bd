"""A pool of sandboxes that are ready, which means that their environment answers, before they are requested.

Sandboxes like those of recent requests are pooled: one fewer than were requested in the last `WINDOW` seconds, at most
`MOST`. So the first request for a key makes none. A key that is held has a number of its own, and is not forgotten.
Ways 1 and 2 of docs/design/instance-creation.md take from it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

WINDOW = 3.0
"""Seconds for which a request counts as demand."""
MOST = 8
"""Pooled sandboxes per key."""
PATIENCE = 0.03
"""Seconds to wait after a request before making the next sandbox: the new instance has a first call to answer."""
KEPT = 20.0
"""Seconds without a request after which the sandboxes of a key are ended."""


class Pool(Generic[T]):
    """Ready sandboxes by key. ``make`` makes one, ``end`` ends one, ``alive`` tells whether one can still be used,
    ``forget`` is called for a key without requests for `KEPT` seconds.
    """

    def __init__(
        self,
        make: Callable[[str], Awaitable[T]],
        end: Callable[[T], Awaitable[None]],
        alive: Callable[[T], bool],
        *,
        forget: Callable[[str], object] = lambda key: None,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._end = end
        self._alive = alive
        self._forget = forget
        self._most = most
        self._clock = clock
        self._ready: dict[str, deque[T]] = defaultdict(deque)
        self._requests: dict[str, deque[float]] = defaultdict(deque)
        self._filling: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Future[None]] = set()
        self._expiring: dict[str, asyncio.TimerHandle] = {}
        self._held: dict[str, int] = {}

    async def hold(self, key: str, size: int) -> None:
        """Keep ``size`` ready until further notice, and return once one is; 0: only what recent requests need.

        Those beyond that are ended.

        Raises:
            Exception: of ``make``; nothing is held then.
        """
        if size and not self.has(key):
            made = await self._make(key)
            self._ready[key].append(made)  # looked up afterwards: `drop` may have replaced it meanwhile
        if size:
            self._held[key] = size
        else:
            self._held.pop(key, None)
        ready = self._ready[key]
        while len(ready) > max(self._wanted(key), 0):
            self._end_later(ready.pop())
        self.refill(key)

    def held(self, key: str) -> int:
        """Return how many are ready for a key."""
        return sum(1 for one in self._ready.get(key, ()) if self._alive(one))

    def has(self, key: str) -> bool:
        """Return whether any is ready."""
        return bool(self._ready.get(key))

    def take(self, key: str) -> T | None:
        """Take out one that is ready, if there is any, and count the request as demand."""
        self._requests[key].append(self._clock())
        ready = self._ready[key]
        while ready:
            one = ready.popleft()
            if self._alive(one):
                return one
        return None

    def was_new(self, key: str) -> bool:
        """Return whether the last `take` of this key was the first."""
        return len(self._requests[key]) == 1

    def refill(self, key: str) -> None:
        """Make what will probably be requested next, in the background."""
        if key not in self._filling and (self._most > 0 or key in self._held):
            task = asyncio.create_task(self._fill(key))
            self._filling[key] = task
            task.add_done_callback(lambda _: self._filling.pop(key, None))
        if key in self._expiring:
            self._expiring.pop(key).cancel()
        if key not in self._held:
            self._expiring[key] = asyncio.get_running_loop().call_later(KEPT, self._expire, key)

    def ready(self) -> Iterable[T]:
        """Return all that are ready."""
        return [one for ready in self._ready.values() for one in ready]

    def drop(self, keep: Callable[[T], bool]) -> list[T]:
        """Take out all for which ``keep`` is false; the caller ends them."""
        dropped: list[T] = []
        for key, ready in list(self._ready.items()):
            dropped += [one for one in ready if not keep(one)]
            self._ready[key] = deque(one for one in ready if keep(one))
        return dropped

    async def close(self) -> None:
        """Stop making sandboxes. The caller ends those that are ready."""
        self._most = 0
        self._held.clear()
        for timer in self._expiring.values():
            timer.cancel()
        tasks = list(self._filling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)

    def _wanted(self, key: str) -> int:
        requests = self._requests[key]
        while requests and requests[0] < self._clock() - WINDOW:
            requests.popleft()
        demand = min(len(requests) - 1, self._most)  # a single request may stay the only one
        return max(demand, self._held.get(key, 0))

    async def _fill(self, key: str) -> None:
        await asyncio.sleep(PATIENCE)
        while len(self._ready[key]) < self._wanted(key):
            try:
                one = await self._make(key)
            except Exception:  # the next request meets the error, and reports it
                return
            self._ready[key].append(one)

    def _expire(self, key: str) -> None:
        self._requests.pop(key, None)
        self._expiring.pop(key, None)
        self._forget(key)
        for one in self._ready.pop(key, ()):
            self._end_later(one)

    def _end_later(self, one: T) -> None:
        task = asyncio.ensure_future(self._end(one))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
