"""Record of an instance on the server that runs it: its request, its state, and what callers see of it."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic_core import to_json

from aenv.client.caller_variables import is_caller_variable
from aenv.engines.base import Engine, SandboxRef, SandboxSpec
from aenv.engines.static_imports import SourceFiles
from aenv.errors import ConfigError, Fault, Forbidden, InstanceEnded, UsageError
from aenv.isolation.files.volumes import Volume
from aenv.isolation.limits.cgroups import Limits
from aenv.isolation.network.allow_list import AllowList, is_public
from aenv.isolation.network.policy import Network
from aenv.platform.access.platform_tokens import OWNER, Caller
from aenv.platform.instances.admission import AdmissionTicket
from aenv.platform.instances.ledger import Charge
from aenv.platform.instances.requests import request_checks, requested_resources
from aenv.platform.instances.requests.datasources import DatasourceRoots
from aenv.project.locate import Located
from aenv.project.manifest import Manifest
from aenv.project.registered import is_image_only, push_advice
from aenv.schema import duration, paths, quantities
from aenv.schema.instances import EndedBy, Env, EnvInstance, EnvInstanceCreateRequest, EnvStatus, InstanceEvent
from aenv.tracing.logging import getLogger
from aenv.tracing.waits import Activity

log = getLogger("instances")

DEFAULT_TTL = duration.parse("30m")
MAX_EVENTS = 64
"""Events to keep per instance."""
LAST_LOG_CHARACTERS = 64 * 1024
"""Characters to keep of an ended instance's log."""
ENDED = (EnvStatus.FAILED, EnvStatus.TERMINATED)
STARTING = (EnvStatus.PENDING, EnvStatus.CREATING)


@dataclass(frozen=True, slots=True)
class Replica:
    """Settings of a service for its instances, beyond a create request."""

    cpus: float | None = None
    memory: int | None = None
    disk: int | None = None
    volume: Volume | None = None
    service: str = ""
    """Service that it is a replica of. Set by the platform alone, unlike labels, which callers choose."""
    revision: int = 0
    """Revision of the service that it runs."""

    def apply_to(self, limits: Limits) -> Limits:
        """Return ``limits``, with those of the service in place of the environment's."""
        return replace(
            limits,
            cpus=limits.cpus if self.cpus is None else self.cpus,
            memory=limits.memory if self.memory is None else self.memory,
            disk=limits.disk if self.disk is None else self.disk,
        )


class InstanceRecord:
    """Record of an instance, from its create request to some time after its end."""

    ticket: AdmissionTicket | None = None
    """Capacity that it holds."""
    ref: SandboxRef | None = None
    timer: asyncio.TimerHandle | None = None
    started: asyncio.Future[None]
    """Done once the create has succeeded or failed."""
    status = EnvStatus.CREATING
    started_at: datetime | None = None
    ended_at: datetime | None = None
    expires_at: datetime | None = None
    deadline = math.inf
    """Monotonic deadline; authoritative. `expires_at` is for display."""
    activity: Activity | None = None
    """Activity that its create waits for."""
    calls = 0
    """Calls that were forwarded to it."""
    waiting = 0
    """Create requests that wait for it to start."""
    claimed = False
    """True once a client has asked for it by its id."""
    mcp_base = ""
    """URL below which its MCP server can be reached over TCP, if that was requested."""
    dismissed = False
    """True once its owner has deleted it, before or after its end."""

    reason: str | None = None
    fault: Fault | None = None
    """Fault behind its end, as in `AEnvError.fault`."""
    error_code: str | None = None
    ended_by: EndedBy | None = None
    exit_code: int | None = None
    datasource_volume: Volume | None = None
    """Folder that its datasource names."""
    last_log = ""
    """The end of its log, once it has ended."""
    opens: tuple[str, ...] = ()
    """Environments that code in it may open, as its config.json declares them."""
    parent = ""
    """Id of the instance whose code has opened it. Empty: created from outside."""
    depth = 0
    """Number of instances around it."""
    forked_from = ""
    """Id of the instance or checkpoint that it is a fork of."""
    checkpoint: str | None = None
    """Name, for a checkpoint."""

    def __init__(
        self,
        request: EnvInstanceCreateRequest,
        env_name: str,
        caller: Caller,
        *,
        ttl: duration.Duration,
        network: Network,
        limits: Limits,
        direct: bool,
        project: Located | None = None,
        replica: Replica | None = None,
    ) -> None:
        """``project``: None if the instance was adopted from an earlier server."""
        self.request = request
        self.project = project
        """None: adopted from an earlier server, or ended."""
        self.replica = replica
        self.creator = caller
        self.account = caller.name
        self.token_id = caller.token_id
        self.env_name = env_name
        self.id = f"{self.env_name.partition('@')[0]}-{secrets.token_hex(4)}"
        self.secret = secrets.token_hex(16)
        """Gives access to clients without a token: it is part of the host name that they are told."""
        self.created = self.updated = _now()
        self.usage: dict[str, Any] = {}
        self._events: deque[InstanceEvent | tuple[datetime, str, str]] = deque(maxlen=MAX_EVENTS)
        """Events: as tuples until they are read, since few ever are."""
        self.ttl = ttl
        self.network = network
        self.limits = limits
        self.digest = project.digest if project is not None else ""
        self.notices = project.notices if project is not None else ()
        self.isolation = ""
        """Isolation level, where the engine has several."""
        self._direct = direct

    @classmethod
    def for_request(
        cls,
        request: EnvInstanceCreateRequest,
        project: Located,
        engine: Engine,
        caller: Caller,
        *,
        direct: bool,
        replica: Replica | None = None,
        datasources: DatasourceRoots | None = None,
    ) -> InstanceRecord:
        """Return the record of an instance to be created.

        Raises:
            UsageError, ConfigError, Forbidden: the request is invalid, or not allowed for this caller.
        """
        manifest = project.loaded.manifest if project.loaded else None
        env_name = f"{manifest.name}@{manifest.version}" if manifest else request.envName
        ttl = parse_ttl(request.ttl) or (manifest.ttl() if manifest else None) or DEFAULT_TTL
        if request.mount_points:
            raise UsageError("mount_points is not supported by this platform: copy files into instances with upload()")
        if manifest and manifest.deploy_config.base and not engine.capabilities.bases:
            raise UsageError(
                f"{env_name} runs on '{manifest.deploy_config.base}', which this platform's engine cannot do"
            )
        _refuse_what_the_engine_lacks(env_name, project, engine)
        if request.forkable:
            refuse_unforkable(env_name, project, request, engine, replica)
        request_checks.check_variables(project.variables)
        variables = {**project.variables, **(request.environment_variables or {})}
        network = _choose_network(env_name, request, manifest.network() if manifest else Network(), variables, engine)
        if not direct:
            _refuse_private_networks(network, caller)
        requested_resources.refuse_unsupported(request, engine)
        limits = requested_resources.apply_requested(request, limits_of(project))
        limits = limits if replica is None else replica.apply_to(limits)
        if manifest is None or manifest.deploy_config.ephemeral_storage_medium != "disk":
            limits = requested_resources.fit_files_in_memory(request, limits, engine)
        record = cls(
            request, env_name, caller, ttl=ttl, network=network, limits=limits, direct=direct, project=project,
            replica=replica,
        )  # fmt: skip
        mounted = (datasources or DatasourceRoots()).volume(request.datasource, engine)
        if mounted is not None and replica is not None and replica.volume is not None:
            raise UsageError("datasource: a service with storage cannot mount a folder as well")
        record.datasource_volume = mounted
        record.isolation = engine.isolation
        if manifest and manifest.deploy_config.environments:
            record.opens = tuple(manifest.deploy_config.environments)
        record.add_event("created", f"by {record.account}")
        return record

    @property
    def startup_seconds(self) -> float | None:
        """Time limit of the start that the environment sets itself."""
        loaded = self.project.loaded if self.project is not None else None
        return loaded.manifest.startup_seconds() if loaded is not None else None

    @property
    def lease(self) -> str | None:
        """Lease whose end also ends the instance."""
        return None if self.request.keep_alive else self.request.lease

    @property
    def charge(self) -> Charge:
        """Usage that counts against the token's allowance."""
        return Charge(token=self.token_id, cpus=self.limits.cpus, memory=self.limits.memory)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the create request."""
        return self.request.labels or {}

    def add_event(self, kind: str, message: str = "") -> None:
        """Append an event."""
        self.updated = _now()
        self._events.append((self.updated, kind, message))

    @property
    def events(self) -> list[InstanceEvent]:
        """Events, oldest first."""
        return [
            event
            if isinstance(event, InstanceEvent)
            else InstanceEvent(at=_timestamp(event[0]), type=event[1], message=event[2])
            for event in self._events
        ]

    def restore_events(self, events: Iterable[InstanceEvent]) -> None:
        """Append the events that an earlier server has recorded."""
        self._events.extend(events)

    def set_status(self, status: EnvStatus, reason: str | None = None) -> None:
        """Change the status, and record that as an event."""
        self.status, self.reason = status, reason
        self.add_event(status.lower(), reason or "")
        if status is EnvStatus.RUNNING:
            self.started_at = self.updated
        elif status in ENDED:
            self.ended_at = self.updated

    @property
    def deleted(self) -> bool:
        """True if it ended because a caller deleted it, or because its owner ended."""
        return self.ended_by in (EndedBy.DELETED, EndedBy.OWNER)

    def ended_error(self) -> InstanceEnded:
        """Return the error for calls to it after its end."""
        return InstanceEnded.because(self.id, self.reason, self.fault, ended_by=self.ended_by)

    def drop_secrets(self) -> None:
        """Drop the parts of the request that only a sandbox needs: some are secret, some large."""
        secret = dict.fromkeys(("environment_variables", "arguments", "hub", "fetching"))
        self.request = self.request.model_copy(update=secret)
        self.project = None

    def spec(self, source_files: SourceFiles, requested_at: float | None = None) -> SandboxSpec:
        """Return the specification of its sandbox. ``requested_at``: monotonic time of the request, if not now."""
        assert self.project is not None
        manifest = self.project.loaded.manifest if self.project.loaded else None
        return SandboxSpec(
            self.env_name,
            self.project.root,
            self.project.code,
            {
                **self.project.variables,
                **_request_variables(self.request),
                **(self.request.environment_variables or {}),
                **_identity(self.project),
            },
            self.request.arguments or [],
            self.limits,
            self.network,
            source_files.needed_by(self.project.code) if manifest is None and self.project.code.is_file() else None,
            manifest.deploy_config.base if manifest else None,
            "" if self._direct else self.account,
            self.request.mcp is not False,
            forkable=self.request.forkable is True,
            volume=(self.replica.volume if self.replica else None) or self.datasource_volume,
            fork=manifest.deploy_config.fork if manifest else True,
            disk_layer="disk" if manifest and manifest.deploy_config.ephemeral_storage_medium == "disk" else "",
            gpus=self.request.gpu or 0,
            image=(manifest.image() or "") if manifest else "",
            template=manifest.pod_template() if manifest and manifest.deploy_config.pod_template else "",
            second_image=f"{manifest.deploy_config.image_prefix or ''}{self.request.datasource}"
            if manifest and _is_dual(manifest) and self.request.datasource
            else "",
            requests=requested_resources.reserved(self.request, manifest, self.limits) if manifest else None,
            ttl=str(self.ttl),
            labels=self.labels,
            exact=frozenset(requested_resources.requested(self.request)),
            isolation=(manifest.deploy_config.isolation or "") if manifest else "",
            fetching={name: value for name, value in (self.request.fetching or {}).items() if is_caller_variable(name)},
            requested_at=time.monotonic() if requested_at is None else requested_at,
        )

    @property
    def _failure_reward(self) -> float | dict[str, Any] | None:
        loaded = self.project.loaded if self.project is not None else None
        return loaded.manifest.failure_reward if loaded is not None else None

    def to_api(self, caller: Caller | None = OWNER) -> EnvInstance:
        """Return the instance as this caller may see it. None: for storage, without its address and secrets."""
        name, _, version = self.env_name.partition("@")
        created, updated = _timestamp(self.created), _timestamp(self.updated)
        return EnvInstance(
            id=self.id,
            env=Env(id=self.env_name, name=name, version=version, created_at=created, updated_at=created),
            status=self.status, created_at=created, updated_at=updated, labels=self.request.labels, ttl=str(self.ttl),
            owner=self.request.owner, reason=self.reason, fault=self.fault, error_code=self.error_code,
            ended_by=self.ended_by, exit_code=self.exit_code, usage=self._reported_usage() or None,
            network=self.network.config_value, isolation=self.isolation or None, digest=self.digest or None,
            notices=list(self.notices) or None,
            failure_reward=self._failure_reward,
            healthy=True if self.ref and self.ref.healthy else None,
            started_at=_timestamp(self.started_at) if self.started_at else None,
            ended_at=_timestamp(self.ended_at) if self.ended_at else None,
            expires_at=_timestamp(self.expires_at) if self.expires_at else None,
            keep_alive=self.request.keep_alive or None, item=self.request.item,
            forkable=self.request.forkable or None, forked_from=self.forked_from or None, checkpoint=self.checkpoint,
            resources=requested_resources.reported(self.request, self.limits),
            account=self.account if caller is not None and caller.role == "admin" and caller.token_id else None,
            **self._address_for(caller),
        )  # fmt: skip

    def _address_for(self, caller: Caller | None) -> dict[str, str]:
        """Return the fields that tell a caller how to reach it."""
        if caller is None:
            return {}
        if self._direct:
            mcp = {"mcp_url": f"{self.mcp_base}/{self.id}{paths.MCP}"} if self.mcp_base else {}
            return {"data_url": self.ref.data_url, "token": self.ref.token, **mcp} if self.ref else {}
        return {} if caller.role == "read-only" else {"ip": f"{self.id}.{self.secret}"}

    def _reported_usage(self) -> dict[str, Any]:
        """Return its usage. Calls are counted only where they pass through the gateway."""
        return self.usage if self._direct or self.status in ENDED else {**self.usage, "calls": self.calls}

    def matches(self, env: str, owner: str | None, labels: dict[str, str], status: str | None) -> bool:
        """Return True if it passes these filters of a list."""
        fields = FilterFields(self.env_name, self.request.owner, self.labels, self.status)
        return fields.matches(env, owner, labels, status)


class FilterFields(NamedTuple):
    """The fields of an instance that lists are filtered by."""

    env_name: str
    owner: str | None
    labels: dict[str, str]
    status: str

    def matches(self, env: str, owner: str | None, labels: dict[str, str], status: str | None) -> bool:
        """Return True if they pass these filters. ``env``: a name, ``name@version``, or ``*`` for all."""
        return (
            env in ("*", self.env_name, self.env_name.partition("@")[0])
            and owner in (None, self.owner)
            and status in (None, self.status)
            and all(self.labels.get(name) == value for name, value in labels.items())
        )


def sort_key(instance: InstanceRecord | EnvInstance) -> str:
    """Return the key that lists are ordered by; the same on every server."""
    created = _timestamp(instance.created) if isinstance(instance, InstanceRecord) else instance.created_at
    return f"{created}/{instance.id}"


def parse_ttl(text: str) -> duration.Duration | None:
    """Parse a time to live; None for an empty text.

    Raises:
        ConfigError: it is invalid, or zero.
    """
    if not text:
        return None
    try:
        ttl = duration.parse(text)
    except ValueError as error:
        raise ConfigError(f"ttl: {error}") from None
    if not ttl:
        raise ConfigError("ttl: it must be longer than zero; to end an instance, delete it")
    return ttl


def _now() -> datetime:
    return datetime.now(UTC)


def _timestamp(at: datetime) -> str:
    return f"{at.isoformat()[:19]}Z"


def limits_of(project: Located) -> Limits:
    """Return the resource limits that a project declares."""
    if project.loaded is None:
        return Limits()
    resources = project.loaded.manifest.resources()
    return Limits(
        memory=quantities.size(resources.memory.limit),
        cpus=quantities.millicores(resources.cpu.limit) / 1000,
        disk=quantities.size(resources.ephemeral_storage.limit),
    )


def _identity(project: Located) -> dict[str, str]:
    """Return the variables with name and resolved version. A client knows only what it asked for: a range, or none."""
    own = project.variables if project.loaded is not None else {}
    return {name: own[name] for name in ("envNAME", "envversion") if name in own}


def _request_variables(request: EnvInstanceCreateRequest) -> dict[str, str]:
    """Return the environment variables that pass other fields of the request to the author's code."""
    variables = {"AENV_DATASOURCE": request.datasource, "AENV_OWNER": request.owner or ""}
    if request.labels:
        variables["AENV_LABELS"] = to_json(request.labels).decode()
    return {name: value for name, value in variables.items() if value}


_TOO_WEAK = {"none": ("confined", "namespaces"), "confined": ("namespaces",)}
"""Values of ``deployConfig.isolation`` that a level does not satisfy."""


def _refuse_what_the_engine_lacks(env_name: str, project: Located, engine: Engine) -> None:
    """Raise UsageError for an environment that only an engine with other abilities can run."""
    if project.loaded is None:
        return
    manifest = project.loaded.manifest
    if is_image_only(project.root) and not engine.capabilities.images:
        raise UsageError(
            f"{env_name} has no files in the hub, only the image {manifest.image()}, as the earlier aenv (0.1) pushes "
            f"it, and this platform's engine runs no images. Run in its project folder: {push_advice(manifest.status)}"
        )
    medium = manifest.deploy_config.ephemeral_storage_medium
    refused = engine.storage_refusal(medium) if medium != "auto" else None
    if refused is not None:
        raise UsageError(f"{env_name}: ephemeralStorageMedium '{medium}' is not available: {refused}. Use auto")
    if _is_dual(manifest) and not engine.capabilities.second_container:
        raise UsageError(
            f"{env_name}: podTemplate dualContainer needs a second container, which this platform's engine cannot "
            "give. Use singleContainer, or a platform whose engine can (aenv serve --engine URL)"
        )
    weakest = manifest.deploy_config.isolation
    if weakest in _TOO_WEAK.get(engine.isolation, ()):
        raise UsageError(
            f"{env_name}: deployConfig.isolation is '{weakest}', and this platform runs instances at the level "
            f"'{engine.isolation}'. Use a platform that isolates more, or change the config.json"
        )
    if manifest.deploy_config.environments and not engine.capabilities.nested:
        raise UsageError(
            f"{env_name}: environments in deployConfig: with this platform's engine, code in an instance cannot open "
            "other environments. Use the native engine"
        )


def refuse_unforkable(
    env_name: str, project: Located, request: EnvInstanceCreateRequest, engine: Engine, replica: Replica | None
) -> None:
    """Raise UsageError for an instance that could not be forked while it runs."""
    manifest = project.loaded.manifest if project.loaded else None
    replay = "leave forkable out, and repeat the calls on a new instance instead"
    if not engine.capabilities.live_fork:
        raise UsageError(f"forkable: this platform's engine cannot fork a running instance; {replay}")
    if manifest is None:
        reason = None
    elif manifest.deploy_config.base:
        reason = "it runs on a base of its own (deployConfig.base)"
    elif manifest.deploy_config.ephemeral_storage_medium == "disk":
        reason = "its files are on disk (ephemeralStorageMedium)"
    elif not manifest.deploy_config.fork:
        reason = "its deployConfig.fork is false"
    else:
        reason = None
    if request.datasource.startswith("/") or (replica is not None and replica.volume is not None):
        reason = "it has a folder that outlives it"
    if reason is not None:
        raise UsageError(f"forkable: {env_name} cannot be forked while it runs: {reason}; {replay}")


def _is_dual(manifest: Manifest) -> bool:
    return bool(manifest.deploy_config.pod_template) and manifest.pod_template() == "dualContainer"


def _refuse_private_networks(network: Network, caller: Caller) -> None:
    """Raise Forbidden if a caller other than an administrator opens the host's or a private network to an instance."""
    if caller.role == "admin":
        return
    if network.mode == "host":
        raise Forbidden("network: only an administrator may give an instance the host's network")
    for subnet in AllowList(network.allow).networks:
        # No private range is larger than this and has public addresses at both ends.
        small = subnet.prefixlen >= (16 if subnet.version == 4 else 32)
        if not (small and is_public(subnet[0]) and is_public(subnet[-1])):
            raise Forbidden(f"network: {subnet} is not entirely public; only an administrator may open it")


def _choose_network(
    env_name: str, request: EnvInstanceCreateRequest, declared: Network, variables: Mapping[str, str], engine: Engine
) -> Network:
    """Return the network that the caller asks for, else the one of the environment's config.json.

    A config.json alone cannot open the host's network: its author need not be the person who runs it.
    """
    try:
        declared = declared.resolve_variables(variables)
        requested = Network.parse(request.network).resolve_variables(variables) if request.network is not None else None
    except ValueError as error:
        raise ConfigError(f"network: {error}") from None
    if requested is not None and requested.mode not in engine.capabilities.networks:
        raise UsageError(
            f"network: this platform's engine cannot give an instance {requested.config_value}; "
            f"it can give {', '.join(sorted(engine.capabilities.networks))}"
        )
    if requested is None and declared.mode == "host" and "loopback" in engine.capabilities.networks:
        raise UsageError(
            f"{env_name} asks for the host's whole network; to allow that, pass Environment(..., network='host')"
        )
    if requested is None and declared.mode not in engine.capabilities.networks:
        if engine.capabilities.networks != {"host"}:
            raise UsageError(
                f"{env_name} needs the network {declared.config_value}, which this platform's engine cannot give; "
                f"it can give {', '.join(sorted(engine.capabilities.networks))}"
            )
        requested = Network("host")  # a plain process has no other; the engine has warned of that
    chosen = requested or declared
    if chosen.mode == "host":
        log.warning("an instance of %s is in the host's network, with every service that listens there", env_name)
    return chosen
