"""Keep preloaded parents: processes that have imported an environment's code, for later sandboxes to be forks of.

A parent is started on the second request for a key: for code that is requested once, importing it twice gains nothing.
Further parents of the same key are started while many forks wait (`ParentCopies`). Ways 3 and 4 of
docs/design/instance-creation.md fork them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from aenv.engines.base import SandboxSpec
from aenv.engines.native.parent_copies import ParentCopies
from aenv.isolation.kernel import ptrace

T = TypeVar("T")


class PreloadedParents(Generic[T]):
    """Parents by key. ``make`` starts one, or returns None if the code cannot be forked; ``end`` ends one; ``busy``
    returns how many forks wait for one; ``equal`` tells whether two can serve the same requests.
    """

    def __init__(
        self,
        make: Callable[[SandboxSpec], Awaitable[T | None]],
        end: Callable[[T], Awaitable[None]],
        alive: Callable[[T], bool],
        busy: Callable[[T], int],
        equal: Callable[[T, T], bool],
    ) -> None:
        self._make = make
        self._end = end
        self._alive = alive
        self._busy = busy
        self._equal = equal
        self._parents: dict[str, asyncio.Future[T | None] | None] = {}
        """By key: None after the first request, then the parent. The result None stands for code that is unfit."""
        self._copies: dict[str, ParentCopies[T]] = {}
        self._ending: set[asyncio.Future[None]] = set()

    async def get(self, key: str, spec: SandboxSpec) -> T | None:
        """Return the parent to fork from, and wait for one that is loading. None: this request loads the code itself.

        The second request for a key starts a parent, and does not wait for it: it is faster by itself. A request for a
        forkable instance always waits for it: only forks of a parent can be forked.
        """
        if not ptrace.supported():
            return None
        if self.is_new(key):
            self.note_request(key)
            if not spec.forkable:
                return None
        loading = self._parents[key]
        parent = _loaded(loading)
        if loading is None or (parent is not None and not self._alive(parent)):
            self._discard(loading)  # a dead one still has a socket and a control group
            copy = self._copies[key].take() if key in self._copies else None
            if copy is None:
                self._parents[key] = asyncio.ensure_future(self._make(spec))
                return await self.get(key, spec) if spec.forkable else None
            loading = self._parents[key] = asyncio.get_running_loop().create_future()
            loading.set_result(copy)
        try:
            parent = await asyncio.shield(loading)
        except Exception:  # the request loads the code itself, and reports what is wrong with it
            self._parents.pop(key, None)
            return None
        return parent if parent is None else await self._choose(key, spec, parent)

    def fork_ended(self, key: str) -> None:
        """Note that a fork of a parent that `get` returned was answered, or has failed."""
        copies = self._copies.get(key)
        if copies is not None:
            copies.fork_ended()

    async def _choose(self, key: str, spec: SandboxSpec, first: T) -> T:
        """Return the least busy parent of a key."""
        copies = self._copies.get(key)
        if copies is None:
            if not self._busy(first):
                return first
            copies = ParentCopies(lambda: self._copy(key, spec), self._end_soon, self._alive, self._busy)
            self._copies[key] = copies
        return await copies.choose(first)

    async def _copy(self, key: str, spec: SandboxSpec) -> T | None:
        """Start another parent of a key; None if it differs from the first, or is not needed any more."""
        copy = await self._make(spec)
        first = self.loaded(key)
        if copy is None or (first is not None and self._equal(first, copy)):
            return copy
        self._end_soon(copy)  # not awaited: `ParentCopies.close` cancels this, and `close` waits for the end
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
        self._end_copies(key)
        loading = self._parents.get(key)
        never: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        never.set_result(None)
        self._parents[key] = never
        self._discard(loading)

    def forget(self, key: str) -> None:
        """End the parents, and forget all about the key."""
        self._end_copies(key)
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
        while self._ending:
            ending = set(self._ending)
            await asyncio.gather(*ending, return_exceptions=True)
            # From Python 3.12 on, waiting for what is done does not let the loop run, and so no callback discards it.
            self._ending -= ending

    def _end_copies(self, key: str) -> None:
        copies = self._copies.pop(key, None)
        if copies is not None:
            self._in_background(copies.close())

    def _end_soon(self, parent: T) -> None:
        self._in_background(self._end(parent))

    def _discard(self, loading: asyncio.Future[T | None] | None) -> None:
        if loading is not None:
            self._in_background(self._end_when_loaded(loading))

    def _in_background(self, ending: Awaitable[None]) -> None:
        task = asyncio.ensure_future(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

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
