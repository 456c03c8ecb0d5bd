"""Packed hosts on this machine: servers of hosts in this process, with an engine that only notes what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from aenv.engines.base import Exit, SandboxRef, SandboxSpec
from aenv.engines.kubernetes.project_archives import ProjectArchives
from aenv.engines.packed.host_placement import HostSize
from aenv.engines.packed.host_server import HostServer
from aenv.engines.packed.packed_hosts import HostGroup, HostLimits, PackedHosts
from aenv.engines.packed.received_projects import ReceivedProjects
from aenv.errors import EnvironmentError
from aenv.isolation.confined.level import Isolation

LIMITS = HostLimits(HostSize(instances=2, memory=1 << 40), hosts=2, wait_seconds=0.05)


class NotedEngine:
    """Notes what it starts and stops; `end` ends a sandbox from inside."""

    isolation: ClassVar[Isolation] = "confined"

    def __init__(self) -> None:
        self.specs: dict[str, SandboxSpec] = {}
        self.ends: dict[str, asyncio.Future[Exit]] = {}
        self.error: Exception | None = None
        self.slow = asyncio.Event()
        self.slow.set()

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        await self.slow.wait()
        if self.error is not None:
            raise self.error
        name = f"sandbox-{len(self.specs)}"
        self.specs[name] = spec
        self.ends[name] = asyncio.get_running_loop().create_future()
        return SandboxRef(name, "http://127.0.0.1:1", f"token of {name}", healthy=True)

    async def until_ended(self, ref: SandboxRef) -> Exit:
        return await asyncio.shield(self.ends[ref.id])

    async def stop(self, ref: SandboxRef) -> None:
        self.ends[ref.id].cancel()
        self.specs.pop(ref.id, None)

    async def close(self) -> None:
        for end in self.ends.values():
            end.cancel()

    def log_since(self, ref: SandboxRef, position: int) -> tuple[str, int]:
        return f"{ref.id} has spoken"[position:], len(ref.id) + len(" has spoken")

    def usage(self, ref: SandboxRef) -> dict[str, Any]:
        return {"memory_bytes": 1}


class HostsHere:
    """Makes hosts in this process, in place of pods."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.servers: dict[str, HostServer] = {}
        self.engines: dict[str, NotedEngine] = {}
        self.groups: dict[str, HostGroup] = {}
        self.leaving: dict[str, asyncio.Event] = {}
        self.lost: dict[str, asyncio.Future[Exit]] = {}
        self.error: EnvironmentError | None = None
        self.made = 0

    async def make(self, name: str, token: str, group: HostGroup) -> tuple[str, int]:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.made += 1
        engine = self.engines[name] = NotedEngine()
        server = HostServer(engine, ReceivedProjects(self._folder / name), token)
        url = await server.open("127.0.0.1", 0)
        self.servers[name], self.groups[name] = server, group
        self.leaving[name] = asyncio.Event()
        self.lost[name] = asyncio.get_running_loop().create_future()
        return "127.0.0.1", int(url.rpartition(":")[2])

    async def until_leaving(self, name: str) -> None:
        await self.leaving[name].wait()

    async def until_lost(self, name: str) -> Exit:
        return await asyncio.shield(self.lost[name])

    async def remove(self, name: str) -> None:
        server = self.servers.pop(name, None)
        if server is not None:
            await server.close()
        if not self.lost[name].done():
            self.lost[name].set_result(Exit(-1, "removed"))

    async def lose(self, name: str) -> None:
        """End a host as the failure of its node does."""
        await self.servers.pop(name).close()
        self.lost[name].set_result(Exit(-1, "its node is gone", "lost"))

    def engine_of(self, name: str) -> NotedEngine:
        """Return the engine on which an instance runs."""
        return self.engines[name]


class Packed:
    """Packed hosts with their archives, and the environments that run on them."""

    def __init__(self, folder: Path, limits: HostLimits) -> None:
        self.pods = HostsHere(folder / "hosts")
        self.hosts = PackedHosts(self.pods, limits)
        self.archives = ProjectArchives(folder / "archives")
        self.folder = folder

    def spec(self, project: str = "one", **more: Any) -> SandboxSpec:
        """Return a request for an instance of a project."""
        folder = self.folder / "projects" / project
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "env.py"
        if not source.exists():
            source.write_text(f"# {project}")
        return SandboxSpec(f"{project}@1.0.0", folder, folder, **more)

    async def start(self, name: str, spec: SandboxSpec | None = None) -> SandboxRef:
        """Start an instance."""
        wanted = spec or self.spec()
        digest = await self.archives.digest_of(wanted)
        return await self.hosts.start(name, wanted, digest, self.archives.file(digest))


@asynccontextmanager
async def packed(folder: Path, limits: HostLimits = LIMITS) -> AsyncIterator[Packed]:
    """Packed hosts that are closed in the end, and have left nothing."""
    made = Packed(folder, limits)
    try:
        yield made
    finally:
        await made.hosts.close()
        made.archives.close()
    assert not made.pods.servers
    assert not list((folder / "hosts").glob("*/*"))
