"""The contract of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from aenv.client.caller_variables import package_index
from aenv.engines.exits import Exit as Exit
from aenv.engines.fd_holders import FdHolderClient
from aenv.images.base_systems import PROJECT_LIMIT
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
        return repr((*place, self.arguments, self.limits, self.network, package_index(self.fetching)))

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


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. The platform refuses a request that needs more, before it calls the engine."""

    networks: frozenset[Mode] = frozenset()
    """The network modes that it can give a sandbox."""
    outlives_server: bool = False
    """Sandboxes can outlive the server: the engine implements `Engine.adopt`, `keep` and `leave`."""
    forks: bool = False
    """Sandboxes can be forks of one preloaded process. Without, each is a new program, as with ``fork=False``."""
    bases: bool = False
    """A sandbox can see another root file system than the host's."""
    volumes: bool = False
    """A sandbox can have a folder that outlives it."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the administrator of a platform decides for all of its sandboxes. An engine uses what it needs of it."""

    pool: int = 0
    """How many sandboxes of one kind to keep ready, at most."""
    group: str = ""
    """Name of the control group that contains those of all sandboxes. Empty: a name of this process."""
    fork: bool = True
    """Allow forks of a preloaded process, where the engine and the environment can."""
    base_limit: int = PROJECT_LIMIT
    """Size limit, in bytes, of a project's unpacked base image."""
    url: str = ""
    """The URL that the engine was named by, if it was."""
    token: str = field(default="", repr=False)
    """Bearer token for the service at ``url``."""


class Engine(ABC):
    """Starts, watches and stops sandboxes.

    Timeouts, retries, quotas and metrics are the caller's job, so that they are written once and not once per engine.
    Engines are registered as entry points (docs/reference/engines.md), and constructed with `create`.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init_subclass__(cls, **more: Any) -> None:
        """Accept ``networks``, ``bases`` and ``volumes`` as attributes of the class, as older plug-ins have them."""
        super().__init_subclass__(**more)
        older = {name: cls.__dict__[name] for name in ("networks", "bases", "volumes") if name in cls.__dict__}
        if older and "capabilities" not in cls.__dict__:
            cls.capabilities = replace(cls.capabilities, **older)

    @classmethod
    def create(cls, folder: Path, options: EngineOptions) -> Self:
        """Construct the engine. ``folder``: for its sockets; it need not exist yet.

        Override it to use the options. As it is, it calls the class with the folder alone.

        Raises:
            Unavailable: this host lacks something that every sandbox needs.
        """
        return cls(folder)  # type: ignore[call-arg]

    @classmethod
    def check_host(cls) -> str:
        """Return a note for the administrator about this engine on this host; may block.

        Raises:
            Unavailable: sandboxes cannot be made here; the message says what is missing.
        """
        return ""

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
