"""The native engine: sandboxes on this Linux machine, without Docker, an image or a daemon of root's.

A create goes one of five ways; docs/design/instance-creation.md has the state diagram and the list of hops.
`NativeEngine.start` chooses among them: two take a sandbox from the pool, three are `SandboxFactory.make`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from aenv.engines.base import (
    Capabilities,
    Engine,
    EngineOptions,
    Exit,
    ForkSpec,
    Resource,
    SandboxRef,
    SandboxSpec,
    StorageMedium,
)
from aenv.engines.fd_holders import FdHolderClient
from aenv.engines.native.adoption import Adoption
from aenv.engines.native.live_forks import LiveForks
from aenv.engines.native.machine_exhaustion import exhausted
from aenv.engines.native.pool import MOST, Pool
from aenv.engines.native.recent_requests import RecentRequests
from aenv.engines.native.sandbox_factory import SandboxFactory
from aenv.engines.native.sandbox_handle import SandboxHandle
from aenv.engines.native.sandbox_keys import SandboxKeys
from aenv.engines.native.zygotes import Zygotes
from aenv.engines.teardown import finish
from aenv.errors import AEnvError, ForkRefused, Unavailable, UsageError
from aenv.images.base_systems import PROJECT_LIMIT, BaseSystems
from aenv.isolation.confined.level import Isolation
from aenv.isolation.files import disk_layers
from aenv.isolation.forking import cpython_internals
from aenv.isolation.host_support import unsupported_reason
from aenv.isolation.limits.cgroups import Cgroups, group_name
from aenv.tracing.logging import getLogger

log = getLogger("native")


class NativeEngine(Engine):
    """Forks sandboxes from one zygote per version of a project."""

    isolation: ClassVar[Isolation] = "namespaces"
    capabilities = Capabilities(
        networks=frozenset(("none", "loopback", "blackhole", "egress", "host")),
        outlives_server=True,
        forks=True,
        bases=True,
        volumes=True,
        on_this_machine=True,
        resources=frozenset(("cpu", "memory", "storage")),
        storage_media=frozenset(("memory",)),
        pools=True,
        nested=True,
        live_fork=True,
    )

    def __init__(
        self,
        folder: Path,
        *,
        pool: int = MOST,
        group: str = "",
        fork: bool = True,
        base_limit: int = PROJECT_LIMIT,
        plain: bool | None = None,
        listen: str = "",
    ) -> None:
        """Most arguments are those of `EngineOptions`. ``plain``: use no private parts of CPython; None: only on
        versions of Python that are tested with them (`cpython_internals`).
        """
        self._may_fork = fork
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._keys = SandboxKeys()
        self._zygotes = Zygotes(
            folder,
            self._keys,
            self._drop_retired,
            plain=not cpython_internals.is_tested() if plain is None else plain,
            level=self.isolation,
        )
        self._factory = SandboxFactory(folder, self._keys, self._zygotes, Cgroups(group or group_name()), listen)
        self._pool: Pool[SandboxHandle] = Pool(
            self._make_pooled,
            self._factory.end,
            lambda sandbox: sandbox.exit is None,
            forget=self._forget,
            most=pool,
        )
        self._live_forks = LiveForks(self._factory)
        self._recent = RecentRequests()
        self._bases = BaseSystems(base_limit)

    def adjustable(self) -> frozenset[Resource]:
        """Return all but CPU where there is no control group for it; memory is then limited for each process."""
        able = self.capabilities.resources
        return able if "cpu" in self._factory.cgroups.controllers else able - {"cpu"}

    @classmethod
    def create(cls, folder: Path, options: EngineOptions) -> Self:
        made: Any = cls
        if options.isolation != cls.isolation:
            from aenv.engines.native.confined_engine import engine_for  # imported here: it is a subclass

            made = engine_for(options.isolation)
        chosen: Self = made(
            folder, pool=options.pool, group=options.group, fork=options.fork, base_limit=options.base_limit,
            listen=options.listen,
        )  # fmt: skip
        return chosen

    @classmethod
    def check_host(cls) -> str:
        reason = unsupported_reason()
        if reason is not None:
            raise Unavailable(reason)
        return ""

    def claim(self, spec: SandboxSpec) -> SandboxRef | None:
        if spec.base is not None or spec.disk_layer:
            return None
        key = self._keys.exact(self._allowed(spec))
        sandbox = self._pool.take(key) if self._pool.has(key) else None
        if sandbox is None:
            return None
        self._pool.refill(key)
        return sandbox.ref

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        try:
            return await self._start(spec)
        except OSError as error:
            raise exhausted(error.errno) or error from error

    async def _start(self, spec: SandboxSpec) -> SandboxRef:
        spec = self._allowed(await self._with_base(spec))
        if spec.disk_layer:
            return await self._start_on_disk(spec)
        key, family = self._keys.exact(spec), self._keys.family(spec)
        if spec.volume is not None:  # a volume has one writer, so no sandbox with it is made ahead
            return (await self._factory.make(spec, key)).ref
        sandbox = self._pool.take(key)
        if sandbox is None and self._pool.was_new(key) and self._factory.family_can_be_forked(family, spec):
            sandbox = await self._take_of_family(spec, family)
            self._expect(family, family, replace(spec, variables={}))
        if sandbox is None:
            sandbox = await self._factory.make(spec, key)
        self._expect(family, key, spec)
        return sandbox.ref

    async def _start_on_disk(self, spec: SandboxSpec) -> SandboxRef:
        """Start a sandbox with a zygote of its own, which has the layer and ends with it."""
        spec = replace(spec, disk_layer=uuid.uuid4().hex)
        try:
            return (await self._factory.make(spec, self._keys.exact(spec))).ref
        finally:
            await asyncio.shield(self._zygotes.retire(spec))

    def storage_refusal(self, medium: StorageMedium) -> str | None:
        """Return why files cannot be on disk, if they cannot: only root can limit their size."""
        return disk_layers.unsupported_reason() if medium == "disk" else super().storage_refusal(medium)

    def _allowed(self, spec: SandboxSpec) -> SandboxSpec:
        return spec if self._may_fork or not spec.fork else replace(spec, fork=False)

    async def _with_base(self, spec: SandboxSpec) -> SandboxSpec:
        """Replace the name of a base by its folder on this host, and add the variables that the base sets.

        Raises:
            ConfigError: no such base, or it is not a root file system.
        """
        if spec.base is None:
            return spec
        base = await self._bases.find(spec.base, spec.project)
        return replace(spec, base=str(base.root), variables={**base.variables, **spec.variables})

    async def _take_of_family(self, spec: SandboxSpec, family: str) -> SandboxHandle | None:
        """Take a pooled sandbox without variables, and send it those of the spec."""
        sandbox = self._pool.take(family)
        if sandbox is None:
            return None
        try:
            await sandbox.send_variables(spec)
        except BaseException as error:
            await finish(self._factory.end(sandbox))
            if not isinstance(error, AEnvError):
                raise
            return None  # it has died or hangs; make another
        return sandbox

    # --- the pool

    def _expect(self, family: str, key: str, spec: SandboxSpec) -> None:
        """Keep sandboxes like this one pooled, if requests for them go on."""
        self._recent.add(family, key, spec)
        self._pool.refill(key)

    async def _make_pooled(self, key: str) -> SandboxHandle:
        return await self._factory.make(self._recent.spec(key), key, pooled=True)

    async def hold(self, spec: SandboxSpec, size: int) -> None:
        if spec.disk_layer:
            raise UsageError(f"{spec.name}: instances with files on disk are not kept ready")
        spec = self._allowed(await self._with_base(spec))
        key = self._keys.exact(spec)
        if size:
            self._recent.add(self._keys.family(spec), key, spec)
        await self._pool.hold(key, size)

    def held(self, spec: SandboxSpec) -> int:
        return self._pool.held(self._keys.exact(self._allowed(spec)))

    def _forget(self, key: str) -> None:
        """End the preloaded parents that only a key without recent requests needed."""
        for unused in self._recent.forget(key):
            self._factory.forget_parents(unused)

    async def _drop_retired(self) -> None:
        """End pooled sandboxes and preloaded parents of an older version of a project."""
        for sandbox in self._pool.drop(lambda sandbox: sandbox.zygote not in self._zygotes.retired):
            await self._factory.end(sandbox)
        self._factory.drop_retired_parents()

    async def fork(
        self, source: SandboxRef, wanted: Sequence[ForkSpec], *, wait: float
    ) -> list[SandboxRef | AEnvError]:
        sandbox = self._factory.sandboxes.get(source.id)
        if sandbox is None or sandbox.exit is not None:
            raise ForkRefused("the instance has ended")
        return await self._live_forks.fork(sandbox, wanted, wait)

    # --- running sandboxes

    async def poll(self, ref: SandboxRef) -> Exit | None:
        sandbox = self._factory.sandboxes.get(ref.id)
        return sandbox.exit if sandbox else Exit(-1, "there is no such sandbox")

    async def until_ended(self, ref: SandboxRef) -> Exit:
        """Return how a sandbox ended, once it has: for a caller that watches many."""
        sandbox = self._factory.sandboxes.get(ref.id)
        if sandbox is not None:
            await sandbox.gone.wait()
        return (sandbox.exit if sandbox else None) or Exit(-1, "there is no such sandbox")

    async def stop(self, ref: SandboxRef) -> None:
        sandbox = self._factory.sandboxes.get(ref.id)
        if sandbox is not None:
            await self._factory.end(sandbox)

    async def running(self) -> AsyncIterator[SandboxRef]:
        pooled = set(self._pool.ready())
        for sandbox in list(self._factory.sandboxes.values()):
            if sandbox.exit is None and sandbox not in pooled:
                yield sandbox.ref

    def logs(self, ref: SandboxRef) -> str:
        sandbox = self._factory.sandboxes.get(ref.id)
        return sandbox.log.since(0)[0] if sandbox else ""

    def log_since(self, ref: SandboxRef, position: int) -> tuple[str, int]:
        sandbox = self._factory.sandboxes.get(ref.id)
        return sandbox.log.since(position) if sandbox else ("", position)

    def usage(self, ref: SandboxRef) -> dict[str, Any]:
        sandbox = self._factory.sandboxes.get(ref.id)
        return sandbox.usage() if sandbox else {}

    # --- the end, and handover to the next server

    async def adopt(self, holder: FdHolderClient) -> list[tuple[SandboxRef, str]]:
        self._zygotes.holder = holder
        adoption = Adoption(holder, self._folder)
        await adoption.take_over(self._factory.egress)
        self._factory.cgroups.clear(but=adoption.tidy())
        self._factory.sandboxes.update({sandbox.id: sandbox for sandbox in adoption.sandboxes})
        # They may be of another version of aenv, and what they have loaded is old: they make no new sandboxes.
        self._zygotes.retired.update(adoption.zygotes)
        return [(sandbox.ref, adoption.notes[sandbox.id]) for sandbox in adoption.sandboxes]

    def keep(self, ref: SandboxRef, note: str) -> None:
        sandbox = self._factory.sandboxes.get(ref.id)
        if sandbox is not None and sandbox.exit is None:
            try:
                sandbox.hold_with(self._zygotes.holder, note)
            except OSError as error:  # such as too many open files
                log.warning("%s will end with this server: %s", sandbox.id, error)

    async def leave(self) -> None:
        self._factory.cancel_timers()
        await self._pool.close()
        await self._factory.egress.end()

    async def close(self) -> None:
        self._factory.cancel_timers()
        await self._pool.close()
        await self._factory.close()
