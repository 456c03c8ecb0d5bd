"""The contract of an engine."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from aenv.client.caller_variables import package_index
from aenv.engines.exits import Exit as Exit
from aenv.engines.fd_holders import FdHolderClient
from aenv.errors import AEnvError
from aenv.images.base_systems import PROJECT_LIMIT
from aenv.isolation.files.volumes import Volume
from aenv.isolation.limits.cgroups import Limits
from aenv.isolation.network.policy import Mode, Network

Resource = Literal["cpu", "memory", "storage", "gpu"]
StorageMedium = Literal["memory", "disk"]


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """A request for a sandbox. Requests that are equal can be served by the same pooled sandbox."""

    name: str
    """Name of the environment, for people and for MCP."""
    project: Path
    """The environment's folder."""
    code: Path
    """The code to load: the project, its ``src`` or one file of it."""
    variables: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    network: Network = field(default_factory=Network)
    files: tuple[str, ...] | None = None
    """Files and folders of the project that belong to the environment. None: all of them."""
    base: str | None = None
    """Root file system to see in place of the host's, as config.json names it."""
    tenant: str = ""
    """The tenant: sandboxes of two tenants share no zygote and no preloaded parent."""
    mcp: bool = True
    """Import the MCP SDK ahead. Without, the first request of an MCP client imports it."""
    fork: bool = True
    """Allow a fork of a process that other sandboxes are forked from, too. Without, it is a new program: slower, and
    with an address layout, stack canaries and hash seed of its own."""
    forkable: bool = False
    """Allow forks of the running sandbox, on engines with the capability `live_fork`."""
    volume: Volume | None = None
    """A folder that outlives the sandbox. No other sandbox has it mounted at the same time."""
    disk_layer: str = ""
    """Keep the files that the sandbox writes on disk. Engines that make the layer themselves give each sandbox another
    name here. Empty: the engine's own choice."""
    ttl: str = field(default="", compare=False)
    """Time to live of the instance, for engines that enforce or show it, too."""
    labels: dict[str, str] = field(default_factory=dict, compare=False)
    """Labels of the instance, for engines that show them."""
    requested_at: float = field(default_factory=time.monotonic, compare=False, repr=False)
    """Monotonic time of the request: its files are those of this moment, or of a later one."""
    gpus: int = 0
    """Number of GPUs."""
    image: str = field(default="", compare=False)
    """Container image of the environment, for engines that run images."""
    second_image: str = field(default="", compare=False)
    """Image of a second container beside the environment's own, for engines with the capability `second_container`."""
    template: str = field(default="", compare=False)
    """``deployConfig.podTemplate``, for engines that have templates. Empty: their default."""
    requests: Limits | None = field(default=None, compare=False)
    """Amounts to reserve, for engines that tell them from the limits. None: the limits."""
    exact: frozenset[Resource] = field(default=frozenset(), compare=False)
    """Resources whose amount the caller has set for this one sandbox, so that an estimate is not enough."""
    isolation: str = field(default="", compare=False)
    """The weakest isolation level that the environment accepts, as ``deployConfig.isolation`` says. Empty: any."""
    fetching: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The caller's proxies, certificates and package index, for installing packages. The sandbox does not get them."""

    @property
    def family(self) -> str:
        """Key of all specs that differ in nothing but their variables."""
        place = (
            self.project,
            self.code,
            self.base,
            self.tenant,
            self.mcp,
            self.fork,
            self.volume,
            self.gpus,
            self.forkable,
        )
        return repr((*place, self.arguments, self.limits, self.network, package_index(self.fetching)))


@dataclass(frozen=True, slots=True)
class ForkSpec:
    """A request for one fork of a running sandbox."""

    variables: dict[str, str] = field(default_factory=dict)
    """All of its environment variables."""
    checkpoint: bool = False
    """Keep the fork stopped: it can only be forked itself."""
    takes_over: SandboxRef | None = None
    """Take the address and token of this sandbox, which the caller stops. None: an address and a token of its own."""


@dataclass(frozen=True, slots=True)
class SandboxRef:
    """Enough to find a sandbox again, and to call what runs in it."""

    id: str
    data_url: str
    token: str
    """Bearer token that calls need."""
    healthy: bool = False
    """The environment answers, and has no health check of its own to call."""
    isolation: str = ""
    """Isolation level of this sandbox, on an engine whose sandboxes differ in it. Empty: that of the engine."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of an engine. The platform refuses a request that needs more, before it calls the engine."""

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
    storages: bool = False
    """Storages of services are the engine's own, reachable from every server: it implements `Engine.make_storage` and
    `remove_storage`. Without, they are folders of the server's machine, and need `volumes`."""
    resources: frozenset[Resource] = frozenset()
    """Resources of which a create request may set the amount for one sandbox."""
    pools: bool = False
    """Sandboxes can be kept ready on request: the engine implements `Engine.hold` and `held`."""
    images: bool = False
    """The engine runs the container image of an environment, so that the environment needs no files in the hub."""
    storage_media: frozenset[StorageMedium] = frozenset()
    """Media for the files that a sandbox writes: its memory, where they count, or disk."""
    second_container: bool = False
    """A sandbox can have a second container beside it: ``podTemplate: dualContainer``."""
    live_fork: bool = False
    """Running sandboxes can be forked: the engine implements `Engine.fork`."""
    nested: bool = False
    """Code in a sandbox can open other environments: ``deployConfig.environments``."""
    on_this_machine: bool = False
    """Sandboxes use this machine's memory and processes, and descriptors of this process."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Decisions of a platform's administrator for all of its sandboxes. An engine uses those that it needs."""

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
    isolation: Literal["namespaces", "confined", "auto"] = "namespaces"
    """Isolation level of instances on this machine. ``auto``: ``namespaces`` where the host allows them, else
    ``confined``."""
    listen: str = ""
    """Address of this machine at which instances accept calls over TCP, each at a port of its own. Empty: they accept
    them at unix sockets."""


class Engine(ABC):
    """Starts, watches and stops sandboxes.

    Timeouts, retries, quotas and metrics are the caller's job, so that they are written once and not once per engine.
    Engines are registered as entry points (docs/reference/engines.md), and constructed with `create`.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    isolation: ClassVar[str] = ""
    """Isolation level of its sandboxes, where there is more than one: it is shown with each instance."""

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

    def adjustable(self) -> frozenset[Resource]:
        """Return the resources of which a request may set the amount, on this host."""
        return self.capabilities.resources

    def claim(self, spec: SandboxSpec) -> SandboxRef | None:
        """Return a pooled sandbox, at once and without waiting; None where `start` has to make one."""
        return None

    def storage_refusal(self, medium: StorageMedium) -> str | None:
        """Return why files of sandboxes cannot be kept in this medium on this host; None if they can."""
        if medium in self.capabilities.storage_media:
            return None
        kept = " and ".join(sorted(self.capabilities.storage_media)) or "a place of its own choice"
        return f"this platform's engine keeps the files of instances in {kept}"

    async def hold(self, spec: SandboxSpec, size: int) -> None:
        """Keep ``size`` sandboxes like this ready, and return once one is; 0 ends them. Needs the capability `pools`.

        Raises:
            LoadError: the author's code cannot be imported.
        """
        raise NotImplementedError

    def held(self, spec: SandboxSpec) -> int:
        """Return how many sandboxes like this are ready."""
        return 0

    async def make_storage(self, name: str, size: int) -> str:
        """Make a storage of that many bytes; return its id, for `Volume.source`. Needs the capability `storages`.

        Raises:
            Unavailable: it cannot be made.
        """
        raise NotImplementedError

    async def remove_storage(self, storage: str) -> None:
        """Remove a storage with all of its files. Idempotent. Needs the capability `storages`."""
        raise NotImplementedError

    @abstractmethod
    async def start(self, spec: SandboxSpec) -> SandboxRef:
        """Return when the environment answers. On failure, leave nothing behind.

        Raises:
            LoadError: the author's code cannot be imported.
            Unavailable: this host cannot do it; the message says what is missing.
        """

    async def fork(
        self, source: SandboxRef, wanted: Sequence[ForkSpec], *, wait: float
    ) -> list[SandboxRef | AEnvError]:
        """Fork a running sandbox, or a checkpoint; return the forks in order, and an error for each that failed.

        Needs the capability `live_fork`. ``wait``: seconds to wait for calls that run in the sandbox.

        Raises:
            ForkRefused: it cannot be forked as it is; it runs on.
        """
        raise NotImplementedError

    @abstractmethod
    async def poll(self, ref: SandboxRef) -> Exit | None:
        """Return None while the sandbox is alive. One that vanished is an `Exit`, not an exception."""

    @abstractmethod
    async def stop(self, ref: SandboxRef) -> None:
        """Return when the sandbox is gone. Idempotent."""

    @abstractmethod
    def running(self) -> AsyncIterator[SandboxRef]:
        """Iterate over all sandboxes of this engine that exist now. The platform stops those without an owner."""

    @abstractmethod
    async def close(self) -> None:
        """Stop all sandboxes, and remove every trace of them."""

    async def adopt(self, holder: FdHolderClient) -> list[tuple[SandboxRef, str]]:
        """Take over the sandboxes of the previous server, before any is started; return them with their notes.

        ``holder``: holds the descriptors of all sandboxes that `keep` is called for. Sandboxes without a note are
        ended.
        """
        return []

    def keep(self, ref: SandboxRef, note: str) -> None:  # noqa: B027 - not every engine can
        """Let a sandbox outlive this process, with a note for the next server. A later note replaces it."""

    async def leave(self) -> None:
        """End this engine. Sandboxes that `keep` was called for stay, for the next server to adopt."""
        await self.close()

    def logs(self, ref: SandboxRef) -> str:
        """Return the last output of its tools, stdout and stderr."""
        return ""

    def log_since(self, ref: SandboxRef, position: int) -> tuple[str, int]:
        """Return the output after ``position``, as far as it is kept, and the position now. 0 is the start."""
        text = self.logs(ref)
        return text[position:], len(text)

    def usage(self, ref: SandboxRef) -> dict[str, Any]:
        """Return its resource usage, as far as the engine can measure it."""
        return {}
