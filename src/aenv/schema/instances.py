"""Instances and services on the wire of the platform's API."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class EnvStatus(StrEnum):
    """The life of an instance."""

    PENDING = "Pending"
    CREATING = "Creating"
    RUNNING = "Running"
    FAILED = "Failed"
    TERMINATED = "Terminated"


class EndedBy(StrEnum):
    """What ended an instance."""

    TTL = "ttl"
    """Its time to live."""
    DELETED = "deleted"
    """A request of its owner's, or of an administrator's."""
    OWNER = "owner"
    """The end of the process that created it."""
    STOPPED = "stopped"
    """The platform, which was stopped."""
    FAILED = "failed"
    """A failure to start it."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel, as it used more memory than its limit."""
    KILLED = "killed"
    """A SIGKILL from outside of its sandbox."""
    CRASHED = "crashed"
    """A signal of its own process's making, such as SIGSEGV."""
    EXITED = "exited"
    """Its own process, which exited."""
    SIGNALLED = "signalled"
    """A program in its sandbox, by a signal to its process; the native engine does not let them."""
    LOST = "lost"
    """The end of what it ran on: the engine's process, the server or the machine."""


class ServiceStatus(StrEnum):
    """The life of a service."""

    PENDING = "Pending"
    CREATING = "Creating"
    RUNNING = "Running"
    UPDATING = "Updating"
    FAILED = "Failed"
    TERMINATED = "Terminated"


class Message(BaseModel):
    """What servers say may grow: a client ignores what it does not know."""

    model_config = ConfigDict(extra="ignore")


class Address(Message):
    """Where something can be reached."""

    ip: str
    port: int
    type: str = "network"
    session_id: str | None = None


class Env(Message):
    """A published environment."""

    id: str = ""
    name: str
    description: str = ""
    version: str
    tags: list[str] | None = None
    code_url: str = ""
    status: int = 0
    artifacts: list[dict[str, Any]] | None = None
    build_config: dict[str, Any] | None = None
    test_config: dict[str, Any] | None = None
    deploy_config: dict[str, Any] | None = None
    created_at: str | None = None
    updated_at: str | None = None


class EnvInstance(Message):
    """A running environment."""

    id: str
    env: Env | None = None
    status: EnvStatus | str
    created_at: str = ""
    updated_at: str = ""
    ip: str | None = None
    labels: dict[str, str] | None = None
    ttl: str | None = None
    owner: str | None = None
    reason: str | None = None
    """Why it failed or ended, or what it waits for."""
    fault: str | None = None
    """Whose fault it is that it ended: `policy` (the agent's), `env` or `infra`."""
    failure_reward: float | dict[str, Any] | None = None
    """The reward of an agent that has destroyed what it would be graded on; absent: 0.0."""
    error_code: str | None = None
    """The code of the error that it failed with."""
    ended_by: str | None = None
    """What ended it: one of `EndedBy`."""
    exit_code: int | None = None
    """Of its process, where that ended by itself or was killed; negative: by that signal."""
    data_url: str | None = None
    """Where its calls go, when that is not the platform's data plane."""
    token: str | None = None
    """What its calls must carry."""
    usage: dict[str, int] | None = None
    """Memory, processes and CPU in use, as far as the engine can tell."""
    network: str | list[str] | None = None
    """What it can reach: `none`, `loopback`, `blackhole`, `host`, or these hosts. Absent: the platform does not say."""
    healthy: bool | None = None
    """It has been seen to answer, and has no health check of its own that could say otherwise."""
    started_at: str | None = None
    ended_at: str | None = None
    expires_at: str | None = None
    """When its time to live ends it."""
    keep_alive: bool | None = None
    """It outlives who asked for it."""


class InstanceEvent(Message):
    """Something that happened to an instance."""

    at: str
    type: str
    message: str = ""


class InstancePage(Message):
    """Some instances."""

    items: list[EnvInstance] = Field(default_factory=list)
    next: str | None = None
    """For ``after``; None at the end."""


class HubAccess(Message):
    """The hub of who asks: a platform that runs for them looks there."""

    model_config = ConfigDict(frozen=True)

    url: str = ""
    """Empty: the hub in the data folder."""
    token: str = Field(default="", repr=False)
    timeout: float = 30.0
    data: str = ""
    """The user's data folder."""
    cache: str = ""
    """The user's cache folder."""
    certificates: str = ""
    """The file, or the folder, of the certificates to trust; empty: those of the system."""


class EnvInstanceCreateRequest(Message):
    """A wish for an instance."""

    envName: str
    datasource: str = ""
    ttl: str = ""
    environment_variables: dict[str, str] | None = None
    arguments: list[str] | None = None
    owner: str | None = None
    labels: dict[str, str] | None = None
    mount_points: list[dict[str, Any]] | None = None
    request_id: str | None = None
    """The same for every try of one create, so that a lost answer cannot start a second instance."""
    source: str | None = None
    """Where the project lies, on a platform that shares the caller's files."""
    hub: HubAccess | None = None
    """Where to look for the environment when there is no ``source``, on a platform of the caller's own."""
    fetching: dict[str, str] | None = Field(default=None, repr=False)
    """The caller's proxies, certificates and package index, on a platform of the caller's own."""
    count: int | None = Field(default=None, ge=1, le=10_000)
    """So many of them in one request; they come back while they are being made."""
    lease: str | None = None
    """Ends the instance when it ends; without one, only the time to live does."""
    keep_alive: bool | None = None
    """It outlives its lease."""
    mcp: bool | None = None
    """False: no MCP client is expected, so what they need is loaded only should one come. It is ready sooner then."""
    network: str | list[str] | None = None
    """What it may reach: `none`, `loopback`, `blackhole`, `host`, or these hosts. Absent: as its config.json says."""
    queue_timeout: float | None = Field(default=None, ge=0)
    """Seconds that it may wait for a place on a platform that is full. Absent: as the platform says."""


class PresignRequest(Message):
    """A wish for a URL of a port inside an instance."""

    port: int = Field(ge=1, le=65535)
    expiration_time_in_minutes: int = Field(default=5, ge=1, le=7 * 24 * 60)


class PresignedUrl(Message):
    """The URL; whoever has it reaches that port until it expires."""

    url: str


class EnvInstanceListResponse(Message):
    """Instances in a list."""

    items: list[EnvInstance] = Field(default_factory=list)


class EnvService(Message):
    """A long-running, replicated environment."""

    id: str
    env: Env | None = None
    status: ServiceStatus | str
    created_at: str = ""
    updated_at: str = ""
    replicas: int = 1
    available_replicas: int = 0
    service_url: str | None = None
    owner: str | None = None
    environment_variables: dict[str, str] | None = None
    pvc_name: str | None = None
    reason: str | None = None
    """Why it is not as it should be, or what became of its last update."""
    labels: dict[str, str] | None = None
    revision: int = 1
    """Counts the updates that are, or are being, rolled out."""
    restarts: int = 0
    """Replicas that were started again after they had ended."""
    instances: list[str] | None = None
    """The replicas, by their ids."""
    mount_path: str | None = None
    storage_size: str | None = None
    storage_used: int | None = None
    """Bytes."""


class EnvServiceCreateRequest(Message):
    """A wish for a service."""

    envName: str
    service_name: str | None = None
    replicas: int = 1
    environment_variables: dict[str, str] | None = None
    owner: str | None = None
    pvc_name: str | None = None
    mount_path: str | None = None
    storage_size: str | None = None
    port: int | None = None
    cpu_request: str | None = None
    cpu_limit: str | None = None
    memory_request: str | None = None
    memory_limit: str | None = None
    ephemeral_storage_request: str | None = None
    ephemeral_storage_limit: str | None = None
    labels: dict[str, str] | None = None
    network: str | list[str] | None = None
    """As of an instance."""
    request_id: str | None = None
    """The same for every try of one create, so that a lost answer cannot start a second service."""


class EnvServiceUpdateRequest(Message):
    """What to change in a service; what is absent stays."""

    replicas: int | None = None
    image: str | None = None
    """The version to run, as the image of it: `registry/name:version`, or `name@version`."""
    environment_variables: dict[str, str] | None = None
    """Added to those that it has."""
    version: str | None = None
    storage_size: str | None = None
    """More than before."""


class EnvServiceListResponse(Message):
    """Services in a list."""

    items: list[EnvService] = Field(default_factory=list)


class APIError(Message):
    """Why a request failed."""

    code: int
    message: str
    reason: str | None = None


class APIResponse(Message):
    """The envelope of every answer of the platform."""

    success: bool = True
    code: int | None = None
    message: str | None = None
    data: Any = None
    errorCode: str | None = None
    errorMessage: str | None = None

    def get_error_message(self) -> str:
        """What went wrong, in words."""
        return self.errorMessage or self.message or "unknown error"
