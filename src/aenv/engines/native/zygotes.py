"""The zygotes of an engine: one per version of a project and tenant, started on the first request for it.

docs/design/instance-creation.md shows where a zygote stands among the processes that make sandboxes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from aenv.client.caller_variables import package_index
from aenv.engines import package_layers
from aenv.engines.base import SandboxSpec
from aenv.engines.fd_holders import Holder, NoHolder
from aenv.engines.native.sandbox_keys import SandboxKeys
from aenv.engines.native.zygote_handle import ZygoteHandle
from aenv.engines.static_imports import packages_of
from aenv.isolation.confined.level import Isolation
from aenv.tracing.waits import waiting_for

IDLE_ZYGOTES = 8
"""Zygotes without sandboxes that stay alive; the least recently used one ends first."""


class Zygotes:
    """Starts zygotes, retires those of older versions of a project, and ends those that nothing needs any more."""

    def __init__(
        self,
        folder: Path,
        keys: SandboxKeys,
        on_retired: Callable[[], Awaitable[None]],
        *,
        plain: bool,
        level: Isolation = "namespaces",
    ) -> None:
        """``on_retired``: called when `retired` has grown, before the next zygote is started. ``plain``: as for
        `NativeEngine`.
        """
        self.holder: Holder = NoHolder()
        self.retired: set[ZygoteHandle] = set()
        """Zygotes that make no new sandboxes. Each ends with its last one."""
        self._folder = folder
        self._keys = keys
        self._plain = plain
        self.level: Isolation = level
        self._on_retired = on_retired
        self._current: dict[tuple[str, str], ZygoteHandle] = {}
        """By place and fingerprint, the least recently used one first."""
        self._starting: dict[tuple[str, str], asyncio.Lock] = {}

    async def get(self, spec: SandboxSpec) -> ZygoteHandle:
        """Return the zygote for the project as it is now; start one if there is none.

        Raises:
            Unavailable: this host cannot do it.
            EnvironmentTimeoutError: the zygote did not start in time.
        """
        key = (zygote_place(spec), self._keys.fingerprint(spec))
        running = self._current.get(key)
        if running is not None and running.alive and key not in self._starting:
            self._current[key] = self._current.pop(key)  # the most recently used one comes last
            return running
        lock = self._starting.setdefault(key, asyncio.Lock())
        if lock.locked():
            with waiting_for(f"another request that prepares {spec.name}"):
                async with lock:
                    pass
        async with lock:
            zygote = self._current.get(key)
            if zygote is None or not zygote.alive:
                for older in [other for other in self._current if other[0] == key[0]]:
                    self.retired.add(self._current.pop(older))
                await self._on_retired()
                zygote = await self._start(spec)
                self._current[key] = zygote
            else:
                self._current[key] = self._current.pop(key)
        self._starting.pop(key, None)
        return zygote

    async def _start(self, spec: SandboxSpec) -> ZygoteHandle:
        shown = await package_layers.folders_of(spec.project, network=spec.network, variables=spec.fetching)
        zygote = ZygoteHandle(spec, self._folder, self.holder, plain=self._plain, level=self.level)
        packages = asyncio.ensure_future(packages_of(spec.project, spec.files))
        try:
            await zygote.start(shown)
            zygote.packages = await packages
        except BaseException:
            packages.cancel()
            await asyncio.wait([packages])
            await zygote.end()
            raise
        return zygote

    async def retire(self, spec: SandboxSpec) -> None:
        """Let the zygotes of this place make no more sandboxes; each ends with its last one."""
        place = zygote_place(spec)
        for key in [key for key in self._current if key[0] == place]:
            self.retired.add(self._current.pop(key))
        await self.end_unused()

    async def end_unused(self) -> None:
        """End retired zygotes without sandboxes, and idle ones beyond `IDLE_ZYGOTES`."""
        while unused := [zygote for zygote in self.retired if not zygote.in_use]:
            self.retired.difference_update(unused)
            for zygote in unused:
                await zygote.end()  # which may leave the zygote that it was forked from unused
        idle = [key for key, zygote in self._current.items() if not zygote.in_use]
        for key in idle[: max(0, len(idle) - IDLE_ZYGOTES)]:
            await self._current.pop(key).end()

    async def close(self) -> None:
        """End all of them, with everything that they forked."""
        for zygote in [*self._current.values(), *self.retired]:
            await zygote.end()


def zygote_place(spec: SandboxSpec) -> str:
    """Return what specs have in common that can share one zygote, in words."""
    place = str(spec.project) if spec.files is None else str(spec.code)
    place = place if spec.base is None else f"{place} on {spec.base}"
    place = f"{place} of {spec.tenant}" if spec.tenant else place
    place = place if spec.mcp else f"{place} without MCP"
    place = f"{place} with {spec.volume}" if spec.volume else place
    place = f"{place} on disk {spec.disk_layer}" if spec.disk_layer else place
    index = package_index(spec.fetching)
    place = f"{place} from {index}" if index else place
    return f"{place} in the host's network" if spec.network.mode == "host" else place
