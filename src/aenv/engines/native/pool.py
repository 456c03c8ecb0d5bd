"""Sandboxes that are ready before anybody asks for them.

Only what was asked for a moment ago is kept ready: as many as were asked for within the last seconds, at most a few.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

WINDOW = 3.0
"""Seconds of demand that count."""
MOST = 8
PATIENCE = 0.03
"""Seconds to leave the machine to who has just been given one, before making the next."""
KEPT = 20.0
"""Seconds that one is kept without being asked for."""


class Pool(Generic[T]):
    """Ready things by key. ``make`` makes one, ``end`` ends one, ``alive`` tells whether one can still be used,
    ``forget`` hears of a key that nobody asks for any more.
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
        self._asked: dict[str, deque[float]] = defaultdict(deque)
        self._filling: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Future[None]] = set()
        self._expiring: dict[str, asyncio.TimerHandle] = {}

    def has(self, key: str) -> bool:
        """Whether any is ready."""
        return bool(self._ready.get(key))

    def take(self, key: str) -> T | None:
        """One that is ready, if there is any. Asking is what makes more of them."""
        self._asked[key].append(self._clock())
        ready = self._ready[key]
        while ready:
            one = ready.popleft()
            if self._alive(one):
                return one
        return None

    def was_new(self, key: str) -> bool:
        """Whether the last one who asked was the first."""
        return len(self._asked[key]) == 1

    def refill(self, key: str) -> None:
        """Make what is likely to be asked for next, in the background."""
        if key not in self._filling and self._most > 0:
            task = asyncio.create_task(self._fill(key))
            self._filling[key] = task
            task.add_done_callback(lambda _: self._filling.pop(key, None))
        if key in self._expiring:
            self._expiring[key].cancel()
        self._expiring[key] = asyncio.get_running_loop().call_later(KEPT, self._expire, key)

    def ready(self) -> Iterable[T]:
        """All that are ready."""
        return [one for ready in self._ready.values() for one in ready]

    def drop(self, keep: Callable[[T], bool]) -> list[T]:
        """Take out, for the caller to end, all that are not worth keeping."""
        dropped: list[T] = []
        for key, ready in list(self._ready.items()):
            dropped += [one for one in ready if not keep(one)]
            self._ready[key] = deque(one for one in ready if keep(one))
        return dropped

    async def close(self) -> None:
        """Stop making; what is ready stays for the caller to end."""
        self._most = 0
        for timer in self._expiring.values():
            timer.cancel()
        tasks = list(self._filling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)

    def _wanted(self, key: str) -> int:
        asked = self._asked[key]
        while asked and asked[0] < self._clock() - WINDOW:
            asked.popleft()
        return min(len(asked) - 1, self._most)  # what was asked for once may never be asked for again

    async def _fill(self, key: str) -> None:
        await asyncio.sleep(PATIENCE)
        while len(self._ready[key]) < self._wanted(key):
            try:
                one = await self._make(key)
            except Exception:  # who asks next gets the error for themselves
                return
            self._ready[key].append(one)

    def _expire(self, key: str) -> None:
        self._asked.pop(key, None)
        self._expiring.pop(key, None)
        self._forget(key)
        for one in self._ready.pop(key, ()):
            task = asyncio.ensure_future(self._end(one))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
