"""Warm pools of pods: instances that run before they are requested, for requests that are equal to the pool's.

A pod takes seconds to start; one that runs already is claimed without a request to the cluster. A claimed pod has the
labels and variables of the pool: a request with other variables gets a pod of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aenv.engines.base import SandboxRef, SandboxSpec
from aenv.engines.kubernetes import pod_labels
from aenv.engines.native.pool import Pool
from aenv.engines.native.sandbox_keys import SandboxKeys


class PodPool:
    """Ready pods by request. ``start`` makes a pod of a name, ``stop`` ends one, ``alive`` tells whether it runs."""

    def __init__(
        self,
        start: Callable[[SandboxSpec, str], Awaitable[SandboxRef]],
        stop: Callable[[SandboxRef], Awaitable[None]],
        alive: Callable[[SandboxRef], bool],
    ) -> None:
        self.names: set[str] = set()
        """Names of pods that are no instances yet: those that start, and those that are ready."""
        self._start = start
        self._stop = stop
        self._keys = SandboxKeys()
        self._specs: dict[str, SandboxSpec] = {}
        self._pool: Pool[SandboxRef] = Pool(self._make, self._end, alive, most=0)  # only what is held

    async def hold(self, spec: SandboxSpec, size: int) -> None:
        """Keep ``size`` pods ready; return once one is. 0: end them."""
        key = self._key(spec)
        if size:
            self._specs[key] = spec
        await self._pool.hold(key, size)

    def held(self, spec: SandboxSpec) -> int:
        """Return how many pods are ready for such a request."""
        return self._pool.held(self._key(spec)) if self._specs else 0

    def claim(self, spec: SandboxSpec) -> SandboxRef | None:
        """Take a ready pod, and have another one made; None if there is none."""
        if not self._specs:
            return None
        key = self._key(spec)
        ref = self._pool.take(key) if self._pool.has(key) else None
        if ref is not None:
            self.names.discard(ref.id)
            self._pool.refill(key)
        return ref

    async def close(self) -> None:
        """Make no more pods. The engine ends those that are ready."""
        await self._pool.close()

    def _key(self, spec: SandboxSpec) -> str:
        own = (spec.image, spec.template, spec.second_image, spec.requests)
        return f"{self._keys.exact(spec)} {own!r}"

    async def _make(self, key: str) -> SandboxRef:
        spec = self._specs[key]
        name = pod_labels.pod_name(spec.name)
        self.names.add(name)
        try:
            return await self._start(spec, name)
        except BaseException:
            self.names.discard(name)
            raise

    async def _end(self, ref: SandboxRef) -> None:
        try:
            await self._stop(ref)
        finally:
            self.names.discard(ref.id)
