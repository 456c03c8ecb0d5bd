"""Sandboxes on this Linux machine, forked from a warm parent: no Docker, no image, no daemon of root's."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from aenv.engines import package_layers
from aenv.engines.base import Capabilities, Engine, EngineOptions, Exit, SandboxRef, SandboxSpec
from aenv.engines.fd_holders import FdHolderClient, Holder, NoHolder
from aenv.engines.native.adoption import Adoption
from aenv.engines.native.handover_records import SANDBOX
from aenv.engines.native.pool import MOST, PATIENCE, Pool
from aenv.engines.native.preloaded_parents import PreloadedParents
from aenv.engines.native.zygote_handle import SandboxHandle, ZygoteHandle, parent_name
from aenv.engines.static_imports import packages_of
from aenv.errors import AEnvError, EnvironmentTimeoutError, LoadError, Unavailable
from aenv.images.base_systems import PROJECT_LIMIT, BaseSystems
from aenv.isolation.files import private_folder
from aenv.isolation.host_support import unsupported_reason
from aenv.isolation.limits.cgroups import Cgroups, group_name
from aenv.isolation.network.egress_process import EgressProcess
from aenv.tracing.logging import getLogger

log = getLogger("native")

PARENT_FAILURES = 24
"""Forks that may fail in a row, whatever kills or stops their parents, before an environment is not forked any more."""
IDLE_ZYGOTES = 8
"""Warm parents without sandboxes that are kept; the longest unused goes first."""
FRESH = 0.05
"""Seconds for which a look at a project's files is good, for who has asked for it."""
AT_ONCE = 0.001
"""Seconds in which one look at a project's files is enough for all who ask."""
_NATIVE = re.compile(
    r"(?i)(LD|LC|SSL|OPENSSL|CURL|GRPC|MALLOC|OMP|MKL|OPENBLAS|CUDA|NVIDIA|GIO)_|LANG|TZ|\w*proxy$"
).match
"""Variables that native code asks for, which nobody sees."""
_IGNORED = {"__pycache__", ".git", ".venv", "venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"}


class NativeEngine(Engine):
    """Forks sandboxes from one zygote per project, as it was when the zygote started."""

    capabilities = Capabilities(
        networks=frozenset(("none", "loopback", "blackhole", "egress", "host")),
        outlives_server=True,
        forks=True,
        bases=True,
        volumes=True,
    )

    def __init__(
        self, folder: Path, *, pool: int = MOST, group: str = "", fork: bool = True, base_limit: int = PROJECT_LIMIT
    ) -> None:
        """``group``: the name of the control group that all sandboxes' are below. ``fork``: see `SandboxSpec.fork`.
        ``base_limit``: bytes that an image in a project may have when it is unpacked.
        """
        self._may_fork = fork
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._holder: Holder = NoHolder()
        self._cgroups = Cgroups(group or group_name())
        self._zygotes: dict[tuple[str, str], ZygoteHandle] = {}
        self._retired: set[ZygoteHandle] = set()
        self._sandboxes: dict[str, SandboxHandle] = {}
        self._specs: dict[str, SandboxSpec] = {}
        self._kin: dict[str, set[str]] = {}
        """Keys of what was asked for of late, by family."""
        self._pool: Pool[SandboxHandle] = Pool(
            self._spare, self._end, lambda sandbox: sandbox.exit is None, forget=self._forget, most=pool
        )
        self._starting: dict[tuple[str, str], asyncio.Lock] = {}
        self._egress = EgressProcess(self._note)
        self._bases = BaseSystems(base_limit)
        self._parents: PreloadedParents[SandboxHandle] = PreloadedParents(
            self._prepare, self._end_parent, lambda parent: parent.exit is None
        )
        self._packages: PreloadedParents[SandboxHandle] = PreloadedParents(
            partial(self._prepare, packages_only=True), self._end_parent, lambda parent: parent.exit is None
        )
        """For environments whose own code cannot be forked."""
        self._failures: Counter[str] = Counter()
        """Forks of preloaded parents that failed in a row, by the parents' key."""
        self._later: asyncio.TimerHandle | None = None
        self._looked: tuple[SandboxSpec | None, float, str] = (None, -1.0, "")
        self._families: set[ZygoteHandle] = set()
        """Zygotes that fork from one parent each."""

    @classmethod
    def create(cls, folder: Path, options: EngineOptions) -> Self:
        return cls(folder, pool=options.pool, group=options.group, fork=options.fork, base_limit=options.base_limit)

    @classmethod
    def check_host(cls) -> str:
        reason = unsupported_reason()
        if reason is not None:
            raise Unavailable(reason)
        return ""

    def claim(self, spec: SandboxSpec) -> SandboxRef | None:
        if spec.base is not None:
            return None
        key = self._key(self._allowed(spec))
        sandbox = self._pool.take(key) if self._pool.has(key) else None
        if sandbox is None:
            return None
        self._pool.refill(key)
        return sandbox.ref

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        spec = self._allowed(await self._with_base(spec))
        if spec.volume is not None:  # it has one writer, so nothing of it is made ahead
            return (await self._spawned(spec, await self._zygote(spec), "spawn", spare=False)).ref
        key, family = self._key(spec), self._family(spec)
        sandbox = self._pool.take(key)
        if sandbox is None and self._pool.was_new(key) and _suits(self._parents.ready(family), spec):
            sandbox = await self._settled(spec, family)
            self._expect(family, family, replace(spec, variables={}))
        if sandbox is None:
            sandbox = await self._fork(spec, key)
        self._expect(family, key, spec)
        return sandbox.ref

    async def _with_base(self, spec: SandboxSpec) -> SandboxSpec:
        """Replace the name of a base by its folder on this host, and add the variables that the base sets.

        Raises:
            ConfigError: no such base, or it is not a root file system.
        """
        if spec.base is None:
            return spec
        base = await self._bases.find(spec.base, spec.project)
        return replace(spec, base=str(base.root), variables={**base.variables, **spec.variables})

    def _allowed(self, spec: SandboxSpec) -> SandboxSpec:
        return spec if self._may_fork or not spec.fork else replace(spec, fork=False)

    def _expect(self, family: str, key: str, spec: SandboxSpec) -> None:
        """Have more of these ready, if they go on being asked for."""
        self._specs[key] = spec
        self._kin.setdefault(family, set()).add(key)
        self._pool.refill(key)

    async def _settled(self, spec: SandboxSpec, family: str) -> SandboxHandle | None:
        """One that was made ahead for any of its family."""
        sandbox = self._pool.take(family)
        if sandbox is None:
            return None
        try:
            await sandbox.settle(spec)
        except BaseException as error:
            await asyncio.shield(self._end(sandbox))
            if not isinstance(error, AEnvError):
                raise
            return None  # it has died, or hangs, and nobody has noticed
        return sandbox

    async def _spare(self, key: str) -> SandboxHandle:
        return await self._fork(self._specs[key], key, spare=True)

    async def _fork(self, spec: SandboxSpec, key: str, *, spare: bool = False) -> SandboxHandle:
        """One that answers: a fork of what has loaded the same before, or else one that loads it for itself."""
        zygote = await self._zygote(spec)
        if not spec.fork:
            return await self._spawned(spec, zygote, "spawn", spare)
        parent, known_as = await self._parent(spec, key)
        if parent is not None:
            try:
                forked = await self._spawned(spec, parent.zygote, "branch", spare)
            except (Unavailable, EnvironmentTimeoutError) as error:
                self._failures[known_as] += 1
                if parent.exit is None or self._failures[known_as] >= PARENT_FAILURES:
                    log.warning("%s is loaded anew for every instance: %s", spec.name, error.message)
                    self._parents.unfit(known_as)
            else:
                self._failures.pop(known_as, None)
                return forked
        if zygote.packages and self._parents.is_unfit(known_as):
            parent = await self._packages.of(self._family(spec), replace(spec, variables={}))
            if parent is not None:
                with contextlib.suppress(Unavailable):
                    return await self._spawned(spec, parent.zygote, "branch", spare)
        return await self._spawned(spec, zygote, "spawn", spare)

    async def _parent(self, spec: SandboxSpec, key: str) -> tuple[SandboxHandle | None, str]:
        """What has loaded the same, and the key that it goes by.

        Where variables differ from one to the next, one that was loaded without any serves all whose variables the
        author's code did not ask for when it was loaded. Whatever it knows, all of its forks know: so it must not be
        loaded with those of one of them.
        """
        family = self._family(spec)
        differ = self._parents.is_new(key) or self._parents.has(family)
        if differ and not self._parents.is_unfit(family) and not any(map(_NATIVE, spec.variables)):
            parent = await self._parents.of(family, replace(spec, variables={}))
            if parent is not None and _suits(parent, spec):
                return parent, family
            self._parents.note(key)
            if parent is None:
                return None, family
            self._parents.unfit(family)
        return await self._parents.of(key, spec), key

    async def _prepare(self, spec: SandboxSpec, *, packages_only: bool = False) -> SandboxHandle | None:
        """A preloaded parent, which has imported the environment, or only its packages; None if it cannot be forked."""
        zygote = await (await self._zygote(spec)).multiply()
        self._families.add(zygote)
        parent = self._made(spec, zygote)
        parent.packages_only = packages_only
        try:
            said = await zygote.spawn(parent, "prepare")
        except LoadError:
            said = {"unfit": "something was missing"}  # a variable, if it is not missing for who has them
        except BaseException:
            await asyncio.shield(self._end_parent(parent))
            raise
        if "unfit" not in said:
            parent.reads = _names(said.get("reads"))
            return parent
        if not packages_only:
            log.info("%s is loaded anew for every instance: %s when it was loaded", spec.name, said["unfit"])
        await self._end_parent(parent)
        return None

    async def _end_parent(self, parent: SandboxHandle) -> None:
        parent.zygote.kill(parent.id)
        await parent.zygote.until_gone(parent)
        self._clean(parent)
        self._families.discard(parent.zygote)
        self._retired.add(parent.zygote)
        await self._tidy()

    async def _spawned(self, spec: SandboxSpec, zygote: ZygoteHandle, op: str, spare: bool) -> SandboxHandle:
        sandbox = self._made(spec, zygote)
        sandbox.spare = spare
        self._sandboxes[sandbox.id] = sandbox
        try:
            said = await zygote.spawn(sandbox, op)
        except BaseException:
            await asyncio.shield(self._end(sandbox))
            raise
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(PATIENCE, self._cgroups.make_spare, spec.limits)
        sandbox.ref = replace(sandbox.ref, healthy=bool(said.get("healthy")))
        return sandbox

    def _made(self, spec: SandboxSpec, zygote: ZygoteHandle) -> SandboxHandle:
        unique = secrets.token_hex(4)
        name = f"{spec.name.partition('@')[0]}-{unique}"
        group = self._cgroups.make(spec.limits)
        sandbox = SandboxHandle(name, spec, self._folder / f"{unique}.sock", zygote, group)
        if spec.network.mode == "egress":
            sandbox.door = self._egress.endpoint(name, spec.network.allow)
        return sandbox

    def _forget(self, key: str) -> None:
        """Nobody has asked for it for a while."""
        self._specs.pop(key, None)
        if key not in self._kin:
            self._parents.forget(key)
        for family, kin in list(self._kin.items()):
            kin.discard(key)
            if not kin:
                del self._kin[family]
                self._parents.forget(family)
                self._packages.forget(family)

    async def poll(self, ref: SandboxRef) -> Exit | None:
        sandbox = self._sandboxes.get(ref.id)
        return sandbox.exit if sandbox else Exit(-1, "there is no such sandbox")

    async def stop(self, ref: SandboxRef) -> None:
        sandbox = self._sandboxes.get(ref.id)
        if sandbox is not None:
            await self._end(sandbox)

    async def running(self) -> AsyncIterator[SandboxRef]:
        spare = set(self._pool.ready())
        for sandbox in list(self._sandboxes.values()):
            if sandbox.exit is None and sandbox not in spare:
                yield sandbox.ref

    async def adopt(self, keeper: FdHolderClient) -> list[tuple[SandboxRef, str]]:
        self._holder = keeper
        adoption = Adoption(keeper, self._folder)
        await adoption.take_over(self._egress)
        self._cgroups.clear(but=adoption.tidy())
        self._sandboxes = {sandbox.id: sandbox for sandbox in adoption.sandboxes}
        # They may be of another version, and what they have loaded is as old as they are: no new ones from these.
        self._retired.update(adoption.zygotes)
        return [(sandbox.ref, adoption.notes[sandbox.id]) for sandbox in adoption.sandboxes]

    def keep(self, ref: SandboxRef, note: str) -> None:
        sandbox = self._sandboxes.get(ref.id)
        if sandbox is not None and sandbox.exit is None:
            sandbox.be_held(self._holder, note)

    async def leave(self) -> None:
        if self._later is not None:
            self._later.cancel()
        await self._pool.close()
        await self._egress.end()

    async def close(self) -> None:
        if self._later is not None:
            self._later.cancel()
        await self._pool.close()
        await self._parents.close()
        await self._packages.close()
        for sandbox in list(self._sandboxes.values()):
            sandbox.zygote.kill(sandbox.id)
        for zygote in [*self._families, *self._zygotes.values(), *self._retired]:
            await zygote.end()
        for sandbox in list(self._sandboxes.values()):
            self._clean(sandbox)
        self._sandboxes.clear()
        await self._egress.end()
        self._cgroups.remove()

    def logs(self, ref: SandboxRef) -> str:
        sandbox = self._sandboxes.get(ref.id)
        return sandbox.log.since(0)[0] if sandbox else ""

    def log_since(self, ref: SandboxRef, position: int) -> tuple[str, int]:
        sandbox = self._sandboxes.get(ref.id)
        return sandbox.log.since(position) if sandbox else ("", position)

    def usage(self, ref: SandboxRef) -> dict[str, Any]:
        sandbox = self._sandboxes.get(ref.id)
        return sandbox.usage() if sandbox else {}

    def _note(self, name: str, text: str) -> None:
        """Something about a sandbox that belongs into its log."""
        if name in self._sandboxes:
            self._sandboxes[name].log.append(text.encode())

    async def _end(self, sandbox: SandboxHandle) -> None:
        sandbox.zygote.kill(sandbox.id)
        await sandbox.zygote.until_gone(sandbox)
        self._sandboxes.pop(sandbox.id, None)
        self._holder.drop(f"{SANDBOX}{sandbox.id}")
        self._clean(sandbox)
        await self._tidy()

    def _clean(self, sandbox: SandboxHandle) -> None:
        sandbox.clean()
        group, sandbox.group = sandbox.group, None
        if group is not None:
            self._cgroups.give_back(sandbox.spec.limits, group)

    async def _zygote(self, spec: SandboxSpec) -> ZygoteHandle:
        key = (parent_name(spec), self._fingerprint(spec))
        lock = self._starting.setdefault(key, asyncio.Lock())
        async with lock:
            zygote = self._zygotes.get(key)
            if zygote is None or not zygote.alive:
                for other in [k for k in self._zygotes if k[0] == key[0]]:
                    self._retired.add(self._zygotes.pop(other))
                for spare in self._pool.drop(lambda s: s.zygote not in self._retired):
                    await self._end(spare)
                for parents in (self._parents, self._packages):
                    parents.drop(lambda parent: parent.zygote.origin not in self._retired)
                zygote = await self._new_zygote(spec)
                self._zygotes[key] = zygote
            else:
                self._zygotes[key] = self._zygotes.pop(key)  # the last one is the last one used
        self._starting.pop(key, None)
        return zygote

    def _key(self, spec: SandboxSpec) -> str:
        """The same for sandboxes of which any will do."""
        return f"{self._fingerprint(spec)} {spec.key}"

    def _family(self, spec: SandboxSpec) -> str:
        """The same for sandboxes that may have been loaded together."""
        return f"{self._fingerprint(spec)} family {spec.family}"

    def _fingerprint(self, spec: SandboxSpec) -> str:
        """Of its project, as it was when this was asked for: one create looks at the files once."""
        known, at, found = self._looked
        age = time.monotonic() - at
        if (known is spec and age < FRESH) or (known is not None and _same_files(known, spec) and age < AT_ONCE):
            return found
        found = fingerprint(spec.project, spec.files)
        self._looked = spec, time.monotonic(), found
        return found

    async def _new_zygote(self, spec: SandboxSpec) -> ZygoteHandle:
        project = spec.project
        wanted = package_layers.requirements_of(project)
        shown = (
            [str(await package_layers.layer(wanted, package_layers.cache_folder(), spec.fetching))] if wanted else []
        )
        zygote = ZygoteHandle(spec, self._folder, self._holder)
        packages = asyncio.ensure_future(packages_of(project, spec.files))
        try:
            await zygote.start(shown)
            zygote.packages = await packages
        except BaseException:
            packages.cancel()
            await asyncio.wait([packages])
            await zygote.end()
            raise
        return zygote

    async def _tidy(self) -> None:
        """End parents that nobody will fork from any more."""
        while unused := [z for z in self._retired if not z.in_use]:
            self._retired.difference_update(unused)
            for zygote in unused:
                await zygote.end()  # and then the one that it was forked from may be unused
        idle = [key for key, zygote in self._zygotes.items() if not zygote.in_use]
        for key in idle[: max(0, len(idle) - IDLE_ZYGOTES)]:
            await self._zygotes.pop(key).end()


def _names(said: Any) -> frozenset[str] | None:
    """What foreign code says that these are; None for anything else."""
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        return None
    return frozenset(said)


def _suits(parent: SandboxHandle | None, spec: SandboxSpec) -> bool:
    """Whether what was loaded without variables is what it would be with these."""
    if parent is None or parent.reads is None or any(map(_NATIVE, spec.variables)):
        return False
    return parent.reads.isdisjoint(spec.variables)


def _same_files(one: SandboxSpec, other: SandboxSpec) -> bool:
    return one.project == other.project and one.files == other.files


def fingerprint(project: Path, files: Iterable[str] | None = None) -> str:
    """Changes when a file of the project does; only ``files`` of it count, if given."""
    seen = []
    withheld_folder = f"{project}/{private_folder.FOLDER}/"
    folders = [str(project)] if files is None else []
    for path in [] if files is None else [project / name for name in files]:
        if path.is_dir():
            folders.append(str(path))
        elif path.exists():
            seen.append(f"{path}\0{path.stat().st_mtime_ns}\0{path.stat().st_size}")
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name in _IGNORED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.endswith((".py", ".json", ".txt", ".toml")) or entry.path.startswith(withheld_folder):
                    about = entry.stat(follow_symlinks=False)
                    seen.append(f"{entry.path}\0{about.st_mtime_ns}\0{about.st_size}")
    return hashlib.sha256("\n".join(sorted(seen)).encode(errors="surrogateescape")).hexdigest()
