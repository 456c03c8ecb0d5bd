"""Make one sandbox that answers: fork it from a preloaded parent, or have it load the environment's code itself.

These are ways 3, 4 and 5 of docs/design/instance-creation.md; ways 1 and 2, which take a sandbox from the pool, are in
`NativeEngine.start`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aenv.engines.base import SandboxSpec
from aenv.engines.native.handover_records import SANDBOX
from aenv.engines.native.pool import PATIENCE
from aenv.engines.native.preloaded_parents import PreloadedParents
from aenv.engines.native.sandbox_handle import SandboxHandle
from aenv.engines.native.sandbox_keys import SandboxKeys
from aenv.engines.native.zygote_handle import ZygoteHandle
from aenv.engines.native.zygotes import Zygotes
from aenv.engines.teardown import finish
from aenv.errors import EnvironmentTimeoutError, LoadError, Unavailable
from aenv.isolation.limits.cgroups import Cgroups
from aenv.isolation.network.egress_process import EgressProcess
from aenv.tracing.logging import getLogger

log = getLogger("native")

IDLE_SECONDS = 10.0
"""Seconds without the end of a sandbox after which idle control groups are removed."""
TRIM_PAUSE = 0.05
"""Seconds between removals of some control groups each."""
PARENT_FAILURES = 24
"""Forks of preloaded parents that may fail in a row before an environment is no longer forked."""
_READ_BY_NATIVE_CODE = re.compile(
    r"(?i)(LD|LC|SSL|OPENSSL|CURL|GRPC|MALLOC|OMP|MKL|OPENBLAS|CUDA|NVIDIA|GIO)_|LANG|TZ|\w*proxy$"
).match
"""Variables that native code is known to read, which `VariablesRead` cannot observe."""


class SandboxFactory:
    """Makes and ends sandboxes and preloaded parents."""

    def __init__(self, folder: Path, keys: SandboxKeys, zygotes: Zygotes, cgroups: Cgroups, listen: str = "") -> None:
        """``listen``: see `EngineOptions`."""
        self.sandboxes: dict[str, SandboxHandle] = {}
        """All sandboxes by id: starting, running and pooled. Preloaded parents are not among them."""
        self.egress = EgressProcess(self._append_to_log)
        self.cgroups = cgroups
        self._folder = folder
        self._listen = listen
        self._keys = keys
        self._zygotes = zygotes
        self._parents = self._new_parents(self._preload)
        """Parents that have imported the environment's code."""
        self._package_parents = self._new_parents(partial(self._preload, packages_only=True))
        """Parents that have imported its packages only, for environments whose own code cannot be forked."""
        self._failures: Counter[str] = Counter()
        """Forks that failed in a row, by the parent's key."""
        self._parent_zygotes: set[ZygoteHandle] = set()
        """Zygotes that control one preloaded parent each."""
        self._spare_group: asyncio.TimerHandle | None = None
        self._trimming: asyncio.TimerHandle | None = None
        self._quiet_since = 0.0

    def _new_parents(
        self, preload: Callable[[SandboxSpec], Awaitable[SandboxHandle | None]]
    ) -> PreloadedParents[SandboxHandle]:
        return PreloadedParents(
            preload,
            self._end_parent,
            lambda parent: parent.exit is None,
            lambda parent: parent.zygote.forks_waiting,
            lambda one, other: one.reads == other.reads,
        )

    async def make(self, spec: SandboxSpec, key: str, *, pooled: bool = False) -> SandboxHandle:
        """Make a sandbox; return when it answers. ``pooled``: there is no request for it yet.

        Raises:
            LoadError: the environment's code cannot be imported.
            Unavailable, EnvironmentTimeoutError: it could not be made.
        """
        zygote = await self._zygotes.get(spec)
        confined = self._zygotes.level == "confined"  # whose forks cannot be made to give up more than their parent did
        if confined or not spec.fork or spec.volume is not None or spec.disk_layer:  # a volume has one writer
            return await self._spawn(spec, zygote, "spawn", pooled)
        parent, parent_key = await self._parent_for(spec, key)
        if parent is not None:
            try:
                forked = await self._spawn(spec, parent.zygote, "branch", pooled, imports_code=False)
            except (Unavailable, EnvironmentTimeoutError) as error:
                self._failures[parent_key] += 1
                if parent.exit is None or self._failures[parent_key] >= PARENT_FAILURES:
                    log.warning("%s is loaded anew for every instance: %s", spec.name, error.message)
                    self._parents.set_unfit(parent_key)
            else:
                self._failures.pop(parent_key, None)
                return forked
            finally:
                self._parents.fork_ended(parent_key)
        if (zygote.packages or spec.forkable) and self._parents.is_unfit(parent_key):
            family = self._keys.family(spec)
            parent = await self._package_parents.get(family, replace(spec, variables={}))
            if parent is not None:
                try:
                    return await self._spawn(spec, parent.zygote, "branch", pooled)
                except Unavailable:
                    pass  # the code is imported by a sandbox of the zygote instead
                finally:
                    self._package_parents.fork_ended(family)
        return await self._spawn(spec, zygote, "spawn", pooled)

    async def _parent_for(self, spec: SandboxSpec, key: str) -> tuple[SandboxHandle | None, str]:
        """Return the preloaded parent to fork from, if there is one, and its key.

        Where variables differ between requests, one parent of the family is loaded without variables. It serves every
        request whose variables the import did not read. No parent is loaded with the variables of one request only,
        since all of its forks could read them in their memory.
        """
        family = self._keys.family(spec)
        differ = self._parents.is_new(key) or self._parents.has(family)
        if differ and not self._parents.is_unfit(family) and not any(map(_READ_BY_NATIVE_CODE, spec.variables)):
            parent = await self._parents.get(family, replace(spec, variables={}))
            if parent is not None and _serves(parent, spec):
                return parent, family
            self._parents.note_request(key)
            if parent is None:
                return None, family
            self._parents.set_unfit(family)
        return await self._parents.get(key, spec), key

    def family_can_be_forked(self, family: str, spec: SandboxSpec) -> bool:
        """Return whether sandboxes without variables, of this family, can be given the variables of the spec."""
        return _serves(self._parents.loaded(family), spec)

    async def _preload(self, spec: SandboxSpec, *, packages_only: bool = False) -> SandboxHandle | None:
        """Start a preloaded parent under a zygote of its own. Return None if the code cannot be forked."""
        zygote = await (await self._zygotes.get(spec)).multiply()
        self._parent_zygotes.add(zygote)
        parent = self.new_handle(spec, zygote)
        parent.packages_only = packages_only
        try:
            answer = await zygote.spawn(parent, "prepare")
        except LoadError:
            answer = {"unfit": "something was missing"}  # such as a variable, which a request may have
        except BaseException:
            await finish(self._end_parent(parent))
            raise
        if "unfit" not in answer:
            parent.reads = _names(answer.get("reads"))
            return parent
        if not packages_only:
            log.info("%s is loaded anew for every instance: %s when it was loaded", spec.name, answer["unfit"])
        await finish(self._end_parent(parent))
        return None

    async def _end_parent(self, parent: SandboxHandle) -> None:
        parent.zygote.kill(parent.id)
        await parent.zygote.until_gone(parent)
        self._clean(parent)
        self._parent_zygotes.discard(parent.zygote)
        self._zygotes.retired.add(parent.zygote)
        await self._zygotes.end_unused()

    async def _spawn(
        self, spec: SandboxSpec, zygote: ZygoteHandle, op: str, pooled: bool, *, imports_code: bool = True
    ) -> SandboxHandle:
        sandbox = self.new_handle(spec, zygote)
        sandbox.pooled = pooled
        self.sandboxes[sandbox.id] = sandbox
        try:
            answer = await zygote.spawn(sandbox, op, imports_code=imports_code)
        except BaseException:
            await finish(self.end(sandbox))
            raise
        if self._spare_group is not None:
            self._spare_group.cancel()
        self._spare_group = asyncio.get_running_loop().call_later(PATIENCE, self.cgroups.make_spare, spec.limits)
        sandbox.ref = replace(sandbox.ref, healthy=bool(answer.get("healthy")))
        return sandbox

    def new_handle(self, spec: SandboxSpec, zygote: ZygoteHandle, *, token: str = "") -> SandboxHandle:
        """Return a handle for a sandbox that does not exist yet, with a control group."""
        unique = secrets.token_hex(4)
        name = f"{spec.name.partition('@')[0]}-{unique}"
        group = self.cgroups.make(spec.limits)
        sandbox = SandboxHandle(name, spec, self._folder / f"{unique}.sock", zygote, group, token, host=self._listen)
        if spec.network.mode == "egress":
            try:
                sandbox.egress = self.egress.endpoint(name, spec.network.allow)
            except BaseException:
                self._clean(sandbox)
                raise
        return sandbox

    async def end(self, sandbox: SandboxHandle) -> None:
        """Kill a sandbox, wait until it is gone, and remove every trace of it. Idempotent."""
        sandbox.zygote.kill(sandbox.id)
        await sandbox.zygote.until_gone(sandbox)
        self.sandboxes.pop(sandbox.id, None)
        self._zygotes.holder.drop(f"{SANDBOX}{sandbox.id}")
        self._clean(sandbox)
        await self._zygotes.end_unused()

    def _clean(self, sandbox: SandboxHandle) -> None:
        sandbox.clean()
        group, sandbox.group = sandbox.group, None
        if group is not None:
            self.cgroups.give_back(sandbox.spec.limits, group)
            loop = asyncio.get_running_loop()
            self._quiet_since = loop.time()
            if self._trimming is None:
                self._trimming = loop.call_later(IDLE_SECONDS, self._trim_groups)

    def _trim_groups(self) -> None:
        """Remove idle control groups, some at a time, once no sandbox has ended for a while."""
        loop = asyncio.get_running_loop()
        left = self._quiet_since + IDLE_SECONDS - loop.time()
        more = left > 0 or self.cgroups.trim()
        self._trimming = loop.call_later(max(left, TRIM_PAUSE), self._trim_groups) if more else None

    def drop_retired_parents(self) -> None:
        """End the preloaded parents of zygotes that are retired."""
        for parents in (self._parents, self._package_parents):
            parents.drop(lambda parent: parent.zygote.origin not in self._zygotes.retired)

    def forget_parents(self, key: str) -> None:
        """End the preloaded parents of a key: it was not requested for a while."""
        self._parents.forget(key)
        self._package_parents.forget(key)

    def _append_to_log(self, name: str, text: str) -> None:
        if name in self.sandboxes:
            self.sandboxes[name].log.append(text.encode())

    def cancel_timers(self) -> None:
        """Neither create nor remove control groups in the background any more."""
        for timer in (self._spare_group, self._trimming):
            if timer is not None:
                timer.cancel()

    async def close(self) -> None:
        """End all parents, sandboxes and zygotes."""
        await self._parents.close()
        await self._package_parents.close()
        for sandbox in list(self.sandboxes.values()):
            sandbox.zygote.kill(sandbox.id)
        for zygote in list(self._parent_zygotes):
            await zygote.end()
        await self._zygotes.close()
        for sandbox in list(self.sandboxes.values()):
            self._clean(sandbox)
        self.sandboxes.clear()
        await self.egress.end()
        self.cgroups.remove()


def _names(reported: Any) -> frozenset[str] | None:
    """Return the names that foreign code reports; None if that is anything but a list of strings."""
    if not isinstance(reported, list) or not all(isinstance(name, str) for name in reported):
        return None
    return frozenset(reported)


def _serves(parent: SandboxHandle | None, spec: SandboxSpec) -> bool:
    """Return whether code that was loaded without variables is the same as if it was loaded with those of the spec."""
    if parent is None or parent.reads is None or any(map(_READ_BY_NATIVE_CODE, spec.variables)):
        return False
    return parent.reads.isdisjoint(spec.variables)
