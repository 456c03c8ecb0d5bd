"""Keep preloaded parents: processes that have imported an environment's code, for later sandboxes to be forks of.

A parent is started on the second request for a key: for code that is requested once, importing it twice gains nothing.
Ways 3 and 4 of docs/design/instance-creation.md fork them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from aenv.engines.base import SandboxSpec
from aenv.isolation.kernel import ptrace

T = TypeVar("T")


class PreloadedParents(Generic[T]):
    """Parents by key. ``make`` starts one, or returns None if the code cannot be forked; ``end`` ends one."""

    def __init__(
        self,
        make: Callable[[SandboxSpec], Awaitable[T | None]],
        end: Callable[[T], Awaitable[None]],
        alive: Callable[[T], bool],
    ) -> None:
        self._make = make
        self._end = end
        self._alive = alive
        self._parents: dict[str, asyncio.Future[T | None] | None] = {}
        """By key: None after the first request, then the parent. The result None stands for code that is unfit."""
        self._ending: set[asyncio.Future[None]] = set()

    async def get(self, key: str, spec: SandboxSpec) -> T | None:
        """Return the parent to fork from, and wait for one that is loading. None: this request loads the code itself.

        The second request for a key starts a parent, and does not wait for it: it is faster by itself.
        """
        if not ptrace.supported():
            return None
        if self.is_new(key):
            self.note_request(key)
            return None
        loading = self._parents[key]
        parent = _loaded(loading)
        if loading is None or (parent is not None and not self._alive(parent)):
            self._discard(loading)  # a dead one still has a socket and a control group
            self._parents[key] = asyncio.ensure_future(self._make(spec))
            return None
        try:
            return await asyncio.shield(loading)
        except Exception:  # the request loads the code itself, and reports what is wrong with it
            self._parents.pop(key, None)
            return None

    def is_new(self, key: str) -> bool:
        """Return whether there was no request for the key."""
        return key not in self._parents

    def has(self, key: str) -> bool:
        """Return whether a parent was started."""
        return self._parents.get(key) is not None

    def loaded(self, key: str) -> T | None:
        """Return the parent if it is alive and has loaded the code."""
        parent = _loaded(self._parents.get(key))
        return parent if parent is not None and self._alive(parent) else None

    def note_request(self, key: str) -> None:
        """Count a request that is served without a parent: the next one starts a parent."""
        self._parents.setdefault(key, None)

    def is_unfit(self, key: str) -> bool:
        """Return whether the code is known to be unfit for forking."""
        loading = self._parents.get(key)
        return loading is not None and _is_done(loading) and loading.result() is None

    def set_unfit(self, key: str) -> None:
        """End the parent and start no other one: the code turned out to be unfit for forking."""
        loading = self._parents.get(key)
        never: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        never.set_result(None)
        self._parents[key] = never
        self._discard(loading)

    def forget(self, key: str) -> None:
        """End the parent, and forget all about the key."""
        self._discard(self._parents.pop(key, None))

    def drop(self, keep: Callable[[T], bool]) -> None:
        """End all parents for which ``keep`` is false."""
        for key, loading in list(self._parents.items()):
            parent = _loaded(loading)
            if parent is not None and not keep(parent):
                self.forget(key)

    async def close(self) -> None:
        """End all parents."""
        for key in list(self._parents):
            self.forget(key)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _discard(self, loading: asyncio.Future[T | None] | None) -> None:
        if loading is not None:
            ending = asyncio.ensure_future(self._end_when_loaded(loading))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _end_when_loaded(self, loading: asyncio.Future[T | None]) -> None:
        try:
            parent = await loading
        except Exception:
            return
        if parent is not None:
            await self._end(parent)


def _loaded(loading: asyncio.Future[T | None] | None) -> T | None:
    return loading.result() if loading is not None and _is_done(loading) else None


def _is_done(loading: asyncio.Future[T | None]) -> bool:
    return loading.done() and not loading.cancelled() and loading.exception() is None
