"""Models of instances and services in the platform's HTTP API."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class EnvStatus(StrEnum):
    """Status of an instance."""

    PENDING = "Pending"
    CREATING = "Creating"
    RUNNING = "Running"
    FAILED = "Failed"
    TERMINATED = "Terminated"


class EndedBy(StrEnum):
    """Cause of an instance's end."""

    TTL = "ttl"
    """Time to live ran out."""
    DELETED = "deleted"
    """Deleted by its owner or an administrator."""
    OWNER = "owner"
    """End of the process that created it."""
    STOPPED = "stopped"
    """Shutdown of the platform."""
    FAILED = "failed"
    """Failure to start."""
    OUT_OF_MEMORY = "out_of_memory"
    """Killed by the kernel for using more memory than its limit."""
    OUT_OF_STORAGE = "out_of_storage"
    """Ended by the cluster for writing more than its storage limit."""
    KILLED = "killed"
    """SIGKILL from outside of its sandbox."""
    CRASHED = "crashed"
    """Crash of its process with a signal such as SIGSEGV."""
    EXITED = "exited"
    """Exit of its own process."""
    SIGNALLED = "signalled"
    """Signal from a program in its sandbox; the native engine prevents this."""
    LOST = "lost"
    """End of the engine's process, the server or the machine that it ran on."""


class ServiceStatus(StrEnum):
    """Status of a service."""

    PENDING = "Pending"
    CREATING = "Creating"
    RUNNING = "Running"
    UPDATING = "Updating"
    FAILED = "Failed"
    TERMINATED = "Terminated"


class Message(BaseModel):
    """Base of wire models. Unknown fields are ignored, so that newer peers can add some."""

    model_config = ConfigDict(extra="ignore")


class Address(Message):
    """Network address."""

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


class InstanceResources(Message):
    """Resources of an instance whose create request asked for some."""

    cpu: float
    """Cores."""
    memory: int
    """Bytes."""
    storage: int
    """Bytes in its writable files."""
    gpu: int = 0


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
    account: str | None = None
    """User of the token that created it; reported to administrators."""
    reason: str | None = None
    """Reason for a failure or an end, or what a pending instance waits for."""
    fault: str | None = None
    """Fault of an ended instance: `policy` (the agent), `env` or `infra`."""
    failure_reward: float | dict[str, Any] | None = None
    """Reward of an agent that destroyed the state to be graded; absent: 0.0."""
    error_code: str | None = None
    """Code of the error that it failed with."""
    ended_by: str | None = None
    """Cause of its end: one of `EndedBy`."""
    exit_code: int | None = None
    """Exit code of its process, if that exited or was killed; negative: the signal number."""
    data_url: str | None = None
    """URL for its calls, if that is not the platform's data plane."""
    token: str | None = None
    """Token that its calls must carry."""
    mcp_url: str | None = None
    """URL of its MCP server for programs that cannot use ``data_url``; they send ``token`` as a bearer token."""
    usage: dict[str, int] | None = None
    """Memory, processes and CPU in use, as far as the engine can tell."""
    network: str | list[str] | None = None
    """Network access: `none`, `loopback`, `blackhole`, `host`, or a list of hosts. Absent: not reported."""
    isolation: str | None = None
    """Isolation level: `namespaces`, `confined` or `none`. Absent: the engine has only one, such as containers."""
    digest: str | None = None
    """Digest of the version that it runs, if that comes from a hub."""
    notices: list[str] | None = None
    """Notices for users of this version, such as that it is deprecated."""
    healthy: bool | None = None
    """True: it has answered a request, and has no health check of its own."""
    started_at: str | None = None
    ended_at: str | None = None
    expires_at: str | None = None
    """Time at which its time to live runs out."""
    keep_alive: bool | None = None
    """True: it outlives the process that created it."""
    resources: InstanceResources | None = None
    """Resources of the instance, if the create request asked for some."""
    item: int | None = None
    """Index of the item of the create request that it was created for."""
    forkable: bool | None = None
    """True: it can be forked while it runs."""
    forked_from: str | None = None
    """Id of the instance or checkpoint that it is a fork of."""
    checkpoint: str | None = None
    """Name of the checkpoint that it is: it is stopped, and can only be forked or rewound to."""


class InstanceEvent(Message):
    """An event in the life of an instance."""

    at: str
    type: str
    message: str = ""


class InstancePage(Message):
    """A page of instances."""

    items: list[EnvInstance] = Field(default_factory=list)
    next: str | None = None
    """Cursor for ``after``; None at the end."""


class HubAccess(Message):
    """The caller's hub, in which a local platform looks up environments."""

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
    """File or folder of trusted certificates; empty: the system's."""


class EnvInstanceItem(Message):
    """An instance among several of a create request; absent fields are those of the request."""

    datasource: str | None = None
    environment_variables: dict[str, str] | None = None
    arguments: list[str] | None = None
    labels: dict[str, str] | None = None


class EnvInstanceCreateRequest(Message):
    """Request to create an instance."""

    envName: str
    datasource: str = ""
    ttl: str = ""
    environment_variables: dict[str, str] | None = None
    arguments: list[str] | None = None
    owner: str | None = None
    labels: dict[str, str] | None = None
    mount_points: list[dict[str, Any]] | None = None
    request_id: str | None = None
    """Idempotency key: the same for every retry, so that a lost response does not start a second instance."""
    source: str | None = None
    """Path of the project, on a platform that shares the caller's files."""
    hub: HubAccess | None = None
    """Hub to look up the environment in when there is no ``source``; only on a local platform."""
    fetching: dict[str, str] | None = Field(default=None, repr=False)
    """The caller's proxies, certificates and package index; only on a local platform."""
    count: int | None = Field(default=None, ge=1, le=10_000)
    """Number of instances to create; the response does not wait until they are ready."""
    lease: str | None = None
    """The instance ends with this lease; without one, only its time to live ends it."""
    keep_alive: bool | None = None
    """True: the instance outlives its lease."""
    mcp: bool | None = None
    """False: load MCP support only when an MCP client connects, so that the instance is ready sooner."""
    network: str | list[str] | None = None
    """Network access: `none`, `loopback`, `blackhole`, `host`, or a list of hosts. Absent: as in its config.json."""
    cpu: str | None = None
    """Cores, like `2` or `500m`. Absent, as for the next two: as in its config.json."""
    memory: str | None = None
    """Memory, like `4Gi`."""
    storage: str | None = None
    """Size of its writable files, like `10Gi`."""
    gpu: int | None = Field(default=None, ge=1)
    """Number of GPUs."""
    items: list[EnvInstanceItem] | None = Field(default=None, min_length=1, max_length=10_000)
    """Items to create an instance for each, as with `count`."""
    item: int | None = None
    """Index of the item that this request is for; set by the platform."""
    queue_timeout: float | None = Field(default=None, ge=0)
    """Seconds to wait for capacity on a full platform. Absent: the platform's default."""
    forkable: bool | None = None
    """True: make an instance that can be forked while it runs."""


class ForkItem(Message):
    """A fork among several; absent fields are those of the instance that is forked."""

    environment_variables: dict[str, str] | None = None
    """Added to those of the instance."""
    labels: dict[str, str] | None = None
    """Added to those of the instance."""
    ttl: str = ""


class InstanceForkRequest(Message):
    """Request to fork a running instance or a checkpoint."""

    items: list[ForkItem] = Field(min_length=1, max_length=1000)
    """The forks to make."""
    wait: float = Field(default=30.0, ge=0, le=3600)
    """Seconds to wait for calls that the instance runs."""
    lease: str | None = None
    """Each fork ends with this lease."""
    keep_alive: bool | None = None
    """True: the forks outlive their lease."""


class ForkOutcome(Message):
    """A fork, or why there is none."""

    instance: EnvInstance | None = None
    error: str | None = None
    code: str | None = None
    fault: str | None = None


class CheckpointRequest(Message):
    """Request to checkpoint a running instance."""

    name: str = Field(default="", max_length=200)
    """Name of the checkpoint; default: its id."""
    ttl: str = ""
    """Time to live. Default: that of the instance."""
    wait: float = Field(default=30.0, ge=0, le=3600)
    lease: str | None = None
    keep_alive: bool | None = None


class RewindRequest(Message):
    """Request to replace a running instance by a fork of a checkpoint."""

    checkpoint: str
    """Id of the checkpoint."""


class ActivityAnswer(Message):
    """Activity that a create request waits for."""

    waiting_for: str
    """Empty: nothing in particular, or there is no such request."""


class PresignRequest(Message):
    """Request for a URL of a port inside an instance."""

    port: int = Field(ge=1, le=65535)
    expiration_time_in_minutes: int = Field(default=5, ge=1, le=7 * 24 * 60)


class PresignedUrl(Message):
    """A URL that gives access to the port until it expires."""

    url: str


class EnvInstanceListResponse(Message):
    """A list of instances."""

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
    """Reason for a status other than Running, or the result of the last update."""
    labels: dict[str, str] | None = None
    revision: int = 1
    """Number of the current revision; each update increments it."""
    restarts: int = 0
    """Number of replicas that were restarted after they had ended."""
    instances: list[str] | None = None
    """Instance ids of the replicas."""
    mount_path: str | None = None
    storage_size: str | None = None
    storage_used: int | None = None
    """Bytes in use."""
    port: int | None = None
    """Port in a replica that the URL leads to; absent: the environment's own server."""
    notices: list[str] | None = None
    """In the response to a create: what users of this version should know, such as that it is deprecated."""


class EnvServiceCreateRequest(Message):
    """Request to create a service."""

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
    """Same values as for an instance."""
    request_id: str | None = None
    """Idempotency key: the same for every retry, so that a lost response does not start a second service."""


class EnvServiceUpdateRequest(Message):
    """Changes to a service; absent fields stay the same."""

    replicas: int | None = None
    image: str | None = None
    """Version to run, as an image (`registry/name:version`) or as `name@version`."""
    environment_variables: dict[str, str] | None = None
    """Merged into the service's variables."""
    version: str | None = None
    storage_size: str | None = None
    """Must be larger than the current size."""


class EnvPoolCreateRequest(Message):
    """Request to keep instances of an environment ready, for creates with the same fields."""

    envName: str
    size: int = Field(ge=1, le=1000)
    """Number of instances to keep ready."""
    datasource: str = ""
    environment_variables: dict[str, str] | None = None
    arguments: list[str] | None = None
    network: str | list[str] | None = None
    mcp: bool | None = None
    source: str | None = None
    """Folder of the project, on the local platform."""
    hub: HubAccess | None = None
    """Hub to take the environment from, on the local platform."""
    fetching: dict[str, str] | None = None
    """Proxies, certificates and package index of the caller, on the local platform."""

    def instance(self) -> EnvInstanceCreateRequest:
        """Return the request that creates an instance like those in the pool."""
        return EnvInstanceCreateRequest.model_validate(self.model_dump(exclude={"size"}))


class EnvPool(Message):
    """A warm pool."""

    name: str
    """Environment, as ``name@version``."""
    size: int
    ready: int
    """Number of instances that are ready now."""
    owner: str = ""
    """Account whose creates it serves."""


class EnvServiceListResponse(Message):
    """A list of services."""

    items: list[EnvService] = Field(default_factory=list)


class APIError(Message):
    """Error of a failed request."""

    code: int
    message: str
    reason: str | None = None


class APIResponse(Message):
    """Envelope of every response of the platform."""

    success: bool = True
    code: int | None = None
    message: str | None = None
    data: Any = None
    errorCode: str | None = None
    errorMessage: str | None = None

    def get_error_message(self) -> str:
        """Return the error message."""
        return self.errorMessage or self.message or "unknown error"
