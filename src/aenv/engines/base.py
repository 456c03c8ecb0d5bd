"""The contract of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from aenv.client.caller_variables import index_of
from aenv.engines.exits import Exit as Exit
from aenv.engines.fd_holders import FdHolderClient
from aenv.isolation.files.volumes import Volume
from aenv.isolation.limits.cgroups import Limits
from aenv.isolation.network.policy import Mode, Network


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What is asked for. Two that are equal may be given the same, already running, sandbox."""

    name: str
    """The environment's, for people and for MCP."""
    project: Path
    """The folder that the environment lives in."""
    code: Path
    """What to load: the project, its ``src`` or one file of it."""
    variables: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    network: Network = field(default_factory=Network)
    files: tuple[str, ...] | None = None
    """Only these of the project's files, or folders, are the environment's. None: all are."""
    base: str | None = None
    """The system that it is to see in place of the host's, as its config.json names it."""
    tenant: str = ""
    """Whose it is: sandboxes of two tenants have nothing warm in common."""
    mcp: bool = True
    """Whether to have ready what MCP clients need; without, it is loaded when the first of them comes."""
    fork: bool = True
    """Whether it may be a fork of a process that others are forked from, too. Without, it is a new program: slower, and
    with an address layout, stack canaries and hash seed of its own."""
    volume: Volume | None = None
    """A folder that outlives it. Nothing else with the same one is started, or loaded, while it is there."""
    fetching: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The caller's proxies, certificates and package index, for installing what it requires. It does not get these."""

    @property
    def family(self) -> str:
        """The same for specs that differ in nothing but their variables."""
        place = (self.project, self.code, self.base, self.tenant, self.mcp, self.fork, self.volume)
        return repr((*place, self.arguments, self.limits, self.network, index_of(self.fetching)))

    @property
    def key(self) -> str:
        """The same for equal specs."""
        return f"{sorted(self.variables.items())!r} {self.family}"


@dataclass(frozen=True, slots=True)
class SandboxRef:
    """Enough to find a sandbox again, and to call what runs in it."""

    id: str
    data_url: str
    token: str
    """What calls must carry."""
    healthy: bool = False
    """It answers, and there is no health check of the author's to ask."""


class Engine(ABC):
    """Starts, watches and stops sandboxes.

    Timeouts, retries, quotas and metrics are the caller's job, so that they are written once and not once per engine.
    """

    networks: ClassVar[frozenset[Mode]]
    """Those that it can give a sandbox; the caller asks for no others."""
    bases: ClassVar[bool] = False
    """Whether a sandbox can have another system than the host's."""
    volumes: ClassVar[bool] = False
    """Whether a sandbox can have a folder that outlives it."""

    def claim(self, spec: SandboxSpec) -> SandboxRef | None:
        """One that is ready and that nobody has yet, at once; None where `start` has to make it."""
        return None

    @abstractmethod
    async def start(self, spec: SandboxSpec) -> SandboxRef:
        """Return when the environment answers. On failure, leave nothing behind.

        Raises:
            LoadError: the author's code cannot be imported.
            Unavailable: this host cannot do it; the message says what is missing.
        """

    @abstractmethod
    async def poll(self, ref: SandboxRef) -> Exit | None:
        """None while alive. A sandbox that vanished is an Exit, not an exception."""

    @abstractmethod
    async def stop(self, ref: SandboxRef) -> None:
        """Return when it is gone. Stopping it twice is fine."""

    @abstractmethod
    def running(self) -> AsyncIterator[SandboxRef]:
        """Everything of ours that exists now."""

    @abstractmethod
    async def close(self) -> None:
        """Stop everything, and remove every trace."""

    async def adopt(self, keeper: FdHolderClient) -> list[tuple[SandboxRef, str]]:
        """Before anything is started: have a keeper hold all that `keep` is called for, and go on with what it holds
        already, from an engine before this one. These, each with its note; what had no note is ended.
        """
        return []

    def keep(self, ref: SandboxRef, note: str) -> None:  # noqa: B027 - not every engine can
        """Let a sandbox outlive this process, with a note for who goes on with it; a later one takes its place."""

    async def leave(self) -> None:
        """Go; what was kept stays with the keeper, for another engine to adopt."""
        await self.close()

    def logs(self, ref: SandboxRef) -> str:
        """The last of what its tools wrote to stdout and stderr."""
        return ""

    def log_since(self, ref: SandboxRef, position: int) -> tuple[str, int]:
        """What was written after ``position``, as far as it is still there, and the position now; 0 is the start."""
        text = self.logs(ref)
        return text[position:], len(text)

    def usage(self, ref: SandboxRef) -> dict[str, Any]:
        """What it uses now, as far as the engine can tell."""
        return {}
