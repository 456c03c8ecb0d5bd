"""Processes that have an environment loaded, kept so that the next instances of it are forks of them.

One is made when something is asked for a second time: for what is asked for once, loading it twice gains nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from aenv.engines.base import SandboxSpec
from aenv.isolation.kernel import ptrace

T = TypeVar("T")


class PreloadedParents(Generic[T]):
    """Parents by key. ``make`` makes one, or None for what cannot be forked; ``end`` ends one."""

    def __init__(
        self,
        make: Callable[[SandboxSpec], Awaitable[T | None]],
        end: Callable[[T], Awaitable[None]],
        alive: Callable[[T], bool],
    ) -> None:
        self._make = make
        self._end = end
        self._alive = alive
        self._made: dict[str, asyncio.Future[T | None] | None] = {}
        """None: it was asked for once."""
        self._ending: set[asyncio.Future[None]] = set()

    async def of(self, key: str, spec: SandboxSpec) -> T | None:
        """The parent to fork from, if there is to be one."""
        if not ptrace.supported():
            return None
        if self.is_new(key):
            self.note(key)
            return None
        making = self._made[key]
        parent = _parent(making)
        if making is None or (parent is not None and not self._alive(parent)):
            self._discard(making)  # a dead one still has a socket and a control group
            self._made[key] = asyncio.ensure_future(self._make(spec))
            return None  # sooner ready by itself than after somebody else
        try:
            return await asyncio.shield(making)
        except Exception:  # who asks next, and loads it for itself, says what is wrong
            self._made.pop(key, None)
            return None

    def is_new(self, key: str) -> bool:
        """Whether nobody has asked for it."""
        return key not in self._made

    def has(self, key: str) -> bool:
        """Whether one was made, or is being made."""
        return self._made.get(key) is not None

    def ready(self, key: str) -> T | None:
        """The parent, if there is one to fork from now."""
        parent = _parent(self._made.get(key))
        return parent if parent is not None and self._alive(parent) else None

    def note(self, key: str) -> None:
        """Somebody has asked for it, and is served otherwise."""
        self._made.setdefault(key, None)

    def is_unfit(self, key: str) -> bool:
        """Whether it is known that it cannot be forked."""
        made = self._made.get(key)
        return made is not None and _is_made(made) and made.result() is None

    def unfit(self, key: str) -> None:
        """It turned out that it cannot be forked: do not try again."""
        made = self._made.get(key)
        never: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        never.set_result(None)
        self._made[key] = never
        self._discard(made)

    def forget(self, key: str) -> None:
        """Nobody asks for it any more."""
        self._discard(self._made.pop(key, None))

    def drop(self, keep: Callable[[T], bool]) -> None:
        """End all that are not worth keeping."""
        for key, made in list(self._made.items()):
            parent = _parent(made)
            if parent is not None and not keep(parent):
                self.forget(key)

    async def close(self) -> None:
        """End them all."""
        for key in list(self._made):
            self.forget(key)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _discard(self, made: asyncio.Future[T | None] | None) -> None:
        if made is not None:
            ending = asyncio.ensure_future(self._end_made(made))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _end_made(self, made: asyncio.Future[T | None]) -> None:
        try:
            parent = await made
        except Exception:
            return
        if parent is not None:
            await self._end(parent)


def _parent(made: asyncio.Future[T | None] | None) -> T | None:
    return made.result() if made is not None and _is_made(made) else None


def _is_made(making: asyncio.Future[T | None]) -> bool:
    return making.done() and not making.cancelled() and making.exception() is None
