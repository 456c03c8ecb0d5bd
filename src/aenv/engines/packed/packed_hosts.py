"""The hosts of a platform server: made when instances need them, and removed when they have been empty for a while.

Hosts belong to groups: instances of two tenants never share a host, nor do instances with and without a network.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from aenv.engines.base import Exit, SandboxRef, SandboxSpec
from aenv.engines.packed import host_placement
from aenv.engines.packed.host_connection import HostConnection
from aenv.engines.packed.host_placement import HostSize
from aenv.engines.teardown import finish
from aenv.errors import AEnvError, CapacityExhausted, EnvironmentError, NetworkError, Unavailable
from aenv.tracing.logging import getLogger

log = getLogger("packed")

ATTEMPTS = 3
"""Hosts to try for one instance, if each is lost before it has it."""


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Instances that may share a host."""

    tenant: str
    network: bool
    """True if the group's instances have the ordinary network of a pod."""

    @classmethod
    def of(cls, spec: SandboxSpec, *, share: bool = False) -> HostGroup:
        """Return the group of a request. ``share``: tenants may share hosts."""
        return cls("" if share else spec.tenant, spec.network.mode == "host")


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Decisions of the administrator about hosts."""

    size: HostSize
    hosts: int = 20
    """Most hosts of all groups together."""
    idle_seconds: float = 300.0
    """Remove a host that has had no instance for this long."""
    reserve: int = 64 << 20
    """Bytes to reserve for an instance that does not say how much it needs."""
    wait_seconds: float = 10.0
    """How long a create waits for room where no host can be added."""
    share: bool = False
    """Instances of different tenants may share a host."""


class HostPods(Protocol):
    """Makes and removes the pods of hosts, and tells what becomes of them."""

    async def make(self, name: str, token: str, group: HostGroup) -> tuple[str, int]:
        """Make a host; return the address and port at which it answers. On failure, leave nothing behind.

        Raises:
            EnvironmentError: it cannot be made; the class says why.
        """

    async def until_leaving(self, name: str) -> None:
        """Return once the host is about to end, so that it gets no more instances."""

    async def until_lost(self, name: str) -> Exit:
        """Return how the host has ended, once it has."""

    async def remove(self, name: str) -> None:
        """Return when the host is gone. Idempotent."""


@dataclass(eq=False)
class _Wait:
    """A create that waits for room."""

    name: str
    project: str
    memory: int
    room: asyncio.Future[HostConnection] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(eq=False)
class _Group:
    hosts: list[HostConnection] = field(default_factory=list)
    starting: set[str] = field(default_factory=set)
    waiting: list[_Wait] = field(default_factory=list)


class PackedHosts:
    """Places instances on hosts."""

    def __init__(self, pods: HostPods, limits: HostLimits) -> None:
        self._pods = pods
        self._limits = limits
        self._groups: dict[HostGroup, _Group] = {}
        self._placed: dict[str, tuple[HostGroup, HostConnection]] = {}
        self._lost: dict[str, Exit] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    @property
    def names(self) -> list[str]:
        """Names of all instances that are on a host, or were on one that is lost."""
        return list(self._placed)

    @property
    def count(self) -> int:
        """Number of hosts, with those that are being made."""
        return sum(len(group.hosts) + len(group.starting) for group in self._groups.values())

    def has(self, name: str) -> bool:
        """Return whether an instance is on a host, or was on one that is lost."""
        return name in self._placed

    def exit_of(self, name: str) -> Exit | None:
        """Return how an instance has ended; None while it is alive."""
        found = self._placed.get(name)
        return found[1].exit_of(name) if found is not None else Exit(-1, "it was stopped")

    async def start(self, name: str, spec: SandboxSpec, digest: str, archive: Path) -> SandboxRef:
        """Start an instance on a host with room; make a host if there is none.

        Raises:
            EnvironmentError: as `Engine.start`.
        """
        key = HostGroup.of(spec, share=self._limits.share)
        memory = spec.requests.memory if spec.requests is not None else self._limits.reserve
        for attempt in range(1, ATTEMPTS + 1):
            host = await self._room(key, name, digest, memory)
            self._placed[name] = key, host
            try:
                return await host.start(name, spec, digest, archive)
            except (NetworkError, CapacityExhausted) as error:
                await finish(self.stop(name))
                if isinstance(error, CapacityExhausted):
                    host.draining = True
                if attempt == ATTEMPTS:
                    raise Unavailable(f"the host of the instance does not answer: {error.message}") from error
            except BaseException:
                await finish(self.stop(name))
                raise
        raise AssertionError("unreachable")

    async def stop(self, name: str) -> None:
        """Stop an instance; return when it is gone. Idempotent."""
        found = self._placed.get(name)
        if found is None:
            return
        key, host = found
        if host.lost is None:
            try:
                await host.stop(name)
            except NetworkError as error:
                if host.lost is None:
                    raise Unavailable(f"the host of the instance does not answer: {error.message}") from error
        self._placed.pop(name, None)
        host.forget(name)
        self._settle(key)
        self._note_idle(key, host)

    def host_of(self, name: str) -> HostConnection | None:
        """Return the host of an instance, while the host is there."""
        found = self._placed.get(name)
        return found[1] if found is not None and found[1].lost is None else None

    async def close(self) -> None:
        """Remove all hosts, with their instances."""
        self._closed = True
        for timer in self._idle.values():
            timer.cancel()
        for group in self._groups.values():
            for wait in group.waiting:
                _fail(wait, Unavailable("the platform is stopping"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        hosts = [host for group in self._groups.values() for host in group.hosts]
        for host in hosts:
            host.lost = host.lost or Exit(-1, "it was stopped")
        await asyncio.gather(*(self._end(host) for host in hosts), return_exceptions=True)
        self._groups.clear()
        self._placed.clear()

    # --- room

    async def _room(self, key: HostGroup, name: str, project: str, memory: int) -> HostConnection:
        """Return a host with room for an instance, where the room is reserved."""
        if self._closed:
            raise Unavailable("the platform is stopping")
        group = self._groups.setdefault(key, _Group())
        wait = _Wait(name, project, memory)
        group.waiting.append(wait)
        self._settle(key)
        try:
            while True:
                done, _ = await asyncio.wait([wait.room], timeout=self._limits.wait_seconds)
                if done:
                    return wait.room.result()
                if not group.starting:
                    raise CapacityExhausted(
                        f"all {self.count} hosts are full; the most that this platform may have is {self._limits.hosts}"
                    )
        except BaseException:
            if wait.room.done() and not wait.room.cancelled() and wait.room.exception() is None:
                wait.room.result().forget(name)
            raise
        finally:
            if wait in group.waiting:
                group.waiting.remove(wait)

    def _settle(self, key: HostGroup) -> None:
        """Give waiting creates room, and add hosts for the others."""
        group = self._groups.get(key)
        if group is None or self._closed:
            return
        left: list[_Wait] = []
        for wait in group.waiting:
            host = host_placement.choose(group.hosts, wait.project, wait.memory, self._limits.size)
            if host is None:
                left.append(wait)
            elif not wait.room.done():
                host.reserve(wait.name, wait.memory)
                wait.room.set_result(host)
        group.waiting = left
        wanted = host_placement.missing([wait.memory for wait in left], len(group.starting), self._limits.size)
        for _ in range(min(wanted, self._limits.hosts - self.count)):
            name = f"aenv-host-{secrets.token_hex(5)}"
            group.starting.add(name)
            self._background(self._add(key, group, name))

    async def _add(self, key: HostGroup, group: _Group, name: str) -> None:
        token = secrets.token_urlsafe(24)
        try:
            address, port = await self._pods.make(name, token, key)
        except Exception as error:
            group.starting.discard(name)
            if not isinstance(error, EnvironmentError):
                log.error("a host could not be made: %r", error)
                error = Unavailable(f"a host could not be made: {error!r}")
            if not group.starting:  # nobody else will make room for these
                for wait in group.waiting:
                    _fail(wait, error)
                group.waiting.clear()
            return
        except BaseException:
            group.starting.discard(name)
            raise
        host = HostConnection(name, token, lambda changed: self._settle(key))
        host.connect(address, port)
        group.starting.discard(name)
        group.hosts.append(host)
        log.info("host %s takes instances of %s", name, key.tenant or "all users")
        self._background(self._drain_in_time(host))
        self._background(self._watch(key, group, host))
        self._settle(key)
        self._note_idle(key, host)

    async def _drain_in_time(self, host: HostConnection) -> None:
        await self._pods.until_leaving(host.name)
        if host.lost is None:
            host.draining = True

    async def _watch(self, key: HostGroup, group: _Group, host: HostConnection) -> None:
        """Note the loss of a host: its instances have ended, and nothing else."""
        how = await self._pods.until_lost(host.name)
        if host.lost is None:
            if host.instances:
                log.warning("host %s with %d instances is lost: %s", host.name, host.instances, how.reason)
            host.lost = Exit(-1, f"the host of the instance ended: {how.reason}", "lost")
        if host in group.hosts:
            group.hosts.remove(host)
        await self._end(host)
        self._settle(key)

    def _note_idle(self, key: HostGroup, host: HostConnection) -> None:
        """Remove a host when it has had no instance for a while."""
        if host.instances or host.lost is not None or self._closed:
            return
        earlier = self._idle.pop(host.name, None)
        if earlier is not None:
            earlier.cancel()
        loop = asyncio.get_running_loop()
        self._idle[host.name] = loop.call_later(
            self._limits.idle_seconds, lambda: self._background(self._retire(key, host))
        )

    async def _retire(self, key: HostGroup, host: HostConnection) -> None:
        self._idle.pop(host.name, None)
        group = self._groups.get(key)
        if group is None or host.instances or host.lost is not None or host not in group.hosts:
            return
        group.hosts.remove(host)
        host.draining, host.lost = True, Exit(-1, "it was removed, as it had no instances")
        await self._end(host)

    async def _end(self, host: HostConnection) -> None:
        timer = self._idle.pop(host.name, None)
        if timer is not None:
            timer.cancel()
        await host.close()
        try:
            await self._pods.remove(host.name)
        except AEnvError as error:
            log.warning("the host %s could not be removed: %s", host.name, error.message)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _fail(wait: _Wait, error: Exception) -> None:
    if not wait.room.done():
        wait.room.set_exception(error)
