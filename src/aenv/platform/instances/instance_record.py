"""What is known of one instance."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic_core import to_json

from aenv.client.caller_variables import travels
from aenv.engines.base import Engine, SandboxRef, SandboxSpec
from aenv.engines.static_imports import SourceFiles
from aenv.errors import ConfigError, Fault, Forbidden, InstanceEnded, UsageError
from aenv.isolation.files.volumes import Volume
from aenv.isolation.limits.cgroups import Limits
from aenv.isolation.network.allow_list import AllowList, is_public
from aenv.isolation.network.policy import Network
from aenv.platform.access.platform_tokens import OWNER, Caller
from aenv.platform.instances import request_checks
from aenv.platform.instances.admission import AdmissionTicket
from aenv.platform.instances.ledger import Charge
from aenv.project import quantities
from aenv.project.locate import Located
from aenv.schema import duration
from aenv.schema.instances import EndedBy, Env, EnvInstance, EnvInstanceCreateRequest, EnvStatus, InstanceEvent
from aenv.tracing.logging import getLogger

log = getLogger("instances")

DEFAULT_TTL = duration.parse("30m")
EVENTS = 64
"""The last so many are kept."""
LAST_LOG = 64 * 1024
"""Characters that are kept of the log of an instance that has ended."""
ENDED = (EnvStatus.FAILED, EnvStatus.TERMINATED)
STARTING = (EnvStatus.PENDING, EnvStatus.CREATING)


@dataclass(frozen=True, slots=True)
class Replica:
    """What a service asks for its instances beyond what anybody may."""

    cpus: float | None = None
    memory: int | None = None
    disk: int | None = None
    volume: Volume | None = None
    service: str = ""
    """The service that it is a replica of. Set by the platform alone: labels are the caller's to choose."""
    revision: int = 0
    """The revision of the service that it runs."""

    def over(self, limits: Limits) -> Limits:
        """Those limits, with these in place of what the environment says."""
        return replace(
            limits,
            cpus=limits.cpus if self.cpus is None else self.cpus,
            memory=limits.memory if self.memory is None else self.memory,
            disk=limits.disk if self.disk is None else self.disk,
        )


class InstanceRecord:
    """One instance, from the wish for it to some time after its end."""

    def __init__(
        self,
        wish: EnvInstanceCreateRequest,
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
        self.wish = wish
        self.project = project
        """None: it was made by a server before this one, or has ended."""
        self.replica = replica
        self.turn: AdmissionTicket | None = None
        """Its place among those that the platform has room for."""
        self.account = caller.name
        self.token_id = caller.token_id
        self.env_name = env_name
        self.id = f"{self.env_name.partition('@')[0]}-{secrets.token_hex(4)}"
        self.secret = secrets.token_hex(16)
        """Opens the way to it for clients that carry no token: it stands in the host that they are told."""
        self.created = self.updated = _now()
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None
        self.expires_at: datetime | None = None
        self.deadline = math.inf
        """The same by the clock that nobody sets, which is what counts."""
        self.status = EnvStatus.CREATING
        self.reason: str | None = None
        self.fault: Fault | None = None
        """Whose fault it is that it ended."""
        self.error_code: str | None = None
        self.ended_by: EndedBy | None = None
        self.exit_code: int | None = None
        self.usage: dict[str, Any] = {}
        self.ref: SandboxRef | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.started: asyncio.Future[None]
        self.last_log = ""
        """Of one that has ended."""
        self.events: deque[InstanceEvent] = deque(maxlen=EVENTS)
        self.calls = 0
        """That were passed on to it."""
        self.waiting = 0
        self.dismissed = False
        """Its owner has deleted it, before or after its end."""
        self.claimed = False
        """Somebody knows its id."""
        self.ttl = ttl
        self.network = network
        self.limits = limits
        self._direct = direct

    @classmethod
    def wished(
        cls,
        wish: EnvInstanceCreateRequest,
        project: Located,
        engine: Engine,
        caller: Caller,
        *,
        direct: bool,
        replica: Replica | None = None,
    ) -> InstanceRecord:
        """One that is about to be made.

        Raises:
            UsageError, ConfigError, Forbidden: it cannot be, or not for this caller.
        """
        own = project.loaded.manifest if project.loaded else None
        env_name = f"{own.name}@{own.version}" if own else wish.envName
        ttl = parse_ttl(wish.ttl) or (own.ttl() if own else None) or DEFAULT_TTL
        if wish.mount_points:
            raise UsageError("mount_points: this platform's engine mounts nothing into instances; use upload()")
        if own and own.deploy_config.base and not engine.capabilities.bases:
            raise UsageError(f"{env_name} runs on '{own.deploy_config.base}', which this platform's engine cannot do")
        request_checks.check_variables(project.variables)
        variables = {**project.variables, **(wish.environment_variables or {})}
        network = _network_of(env_name, wish, own.network() if own else Network(), variables, engine)
        if not direct:
            _refuse_inner_networks(network, caller)
        limits = limits_of(project) if replica is None else replica.over(limits_of(project))
        record = cls(
            wish, env_name, caller, ttl=ttl, network=network, limits=limits, direct=direct, project=project,
            replica=replica,
        )  # fmt: skip
        record.note("created", f"by {record.account}")
        return record

    @property
    def lease(self) -> str | None:
        """What ends it when it ends."""
        return None if self.wish.keep_alive else self.wish.lease

    @property
    def charge(self) -> Charge:
        """What it uses of an allowance."""
        return Charge(token=self.token_id, cpus=self.limits.cpus, memory=self.limits.memory)

    @property
    def labels(self) -> dict[str, str]:
        """As they were asked for."""
        return self.wish.labels or {}

    def note(self, kind: str, message: str = "") -> None:
        """Something happened to it."""
        self.updated = _now()
        self.events.append(InstanceEvent(at=_written(self.updated), type=kind, message=message))

    def became(self, status: EnvStatus, reason: str | None = None) -> None:
        """It is something else now."""
        self.status, self.reason = status, reason
        self.note(status.lower(), reason or "")
        if status is EnvStatus.RUNNING:
            self.started_at = self.updated
        elif status in ENDED:
            self.ended_at = self.updated

    @property
    def deleted(self) -> bool:
        """Whether it is there no more because somebody asked for that."""
        return self.ended_by in (EndedBy.DELETED, EndedBy.OWNER)

    def ended_error(self) -> InstanceEnded:
        """What a caller of it is told once it has ended."""
        return InstanceEnded.because(self.id, self.reason, self.fault, ended_by=self.ended_by)

    def forget_wish(self) -> None:
        """Let go of what only a sandbox needs to know, some of it secret, and of what may be large."""
        secret = dict.fromkeys(("environment_variables", "arguments", "hub", "fetching"))
        self.wish = self.wish.model_copy(update=secret)
        self.project = None

    def spec(self, neighbours: SourceFiles) -> SandboxSpec:
        """What to ask an engine for."""
        assert self.project is not None
        own = self.project.loaded.manifest if self.project.loaded else None
        return SandboxSpec(
            self.env_name,
            self.project.root,
            self.project.code,
            {**self.project.variables, **_variables_of(self.wish), **(self.wish.environment_variables or {})},
            self.wish.arguments or [],
            self.limits,
            self.network,
            neighbours.needed_by(self.project.code) if own is None and self.project.code.is_file() else None,
            own.deploy_config.base if own else None,
            "" if self._direct else self.account,
            self.wish.mcp is not False,
            volume=self.replica.volume if self.replica else None,
            fork=own.deploy_config.fork if own else True,
            fetching={name: value for name, value in (self.wish.fetching or {}).items() if travels(name)},
        )

    @property
    def _failure_reward(self) -> float | dict[str, Any] | None:
        loaded = self.project.loaded if self.project is not None else None
        return loaded.manifest.failure_reward if loaded is not None else None

    def shown(self, caller: Caller | None = OWNER) -> EnvInstance:
        """What this caller may know of it. None: what may be written down, without a way to it."""
        name, _, version = self.env_name.partition("@")
        created, updated = _written(self.created), _written(self.updated)
        return EnvInstance(
            id=self.id,
            env=Env(id=self.env_name, name=name, version=version, created_at=created, updated_at=created),
            status=self.status, created_at=created, updated_at=updated, labels=self.wish.labels, ttl=str(self.ttl),
            owner=self.wish.owner, reason=self.reason, fault=self.fault, error_code=self.error_code,
            ended_by=self.ended_by, exit_code=self.exit_code, usage=self._used() or None,
            network=self.network.config_value, failure_reward=self._failure_reward,
            healthy=True if self.ref and self.ref.healthy else None,
            started_at=_written(self.started_at) if self.started_at else None,
            ended_at=_written(self.ended_at) if self.ended_at else None,
            expires_at=_written(self.expires_at) if self.expires_at else None,
            keep_alive=self.wish.keep_alive or None,
            **self._way_for(caller),
        )  # fmt: skip

    def _way_for(self, caller: Caller | None) -> dict[str, str]:
        """How it is called."""
        if caller is None:
            return {}
        if self._direct:
            return {"data_url": self.ref.data_url, "token": self.ref.token} if self.ref else {}
        return {} if caller.role == "read-only" else {"ip": f"{self.id}.{self.secret}"}

    def _used(self) -> dict[str, Any]:
        """Calls are known where they come through us."""
        return self.usage if self._direct or self.status in ENDED else {**self.usage, "calls": self.calls}

    def fits(self, env: str, owner: str | None, labels: dict[str, str], status: str | None) -> bool:
        """Whether it is among those that are asked for."""
        own = Filtered(self.env_name, self.wish.owner, self.labels, self.status)
        return own.fits(env, owner, labels, status)


class Filtered(NamedTuple):
    """What lists are filtered by."""

    env_name: str
    owner: str | None
    labels: dict[str, str]
    status: str

    def fits(self, env: str, owner: str | None, labels: dict[str, str], status: str | None) -> bool:
        """Whether it is among those that are asked for."""
        return (
            env in ("*", self.env_name, self.env_name.partition("@")[0])
            and owner in (None, self.owner)
            and status in (None, self.status)
            and all(self.labels.get(name) == value for name, value in labels.items())
        )


def place_of(instance: InstanceRecord | EnvInstance) -> str:
    """Where it stands in a list; the same on every server."""
    created = _written(instance.created) if isinstance(instance, InstanceRecord) else instance.created_at
    return f"{created}/{instance.id}"


def parse_ttl(text: str) -> duration.Duration | None:
    """A time to live as it is written; None when nothing is.

    Raises:
        ConfigError: it is none, or zero.
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


def _written(at: datetime) -> str:
    return f"{at.isoformat()[:19]}Z"


def limits_of(project: Located) -> Limits:
    if project.loaded is None:
        return Limits()
    resources = project.loaded.manifest.resources()
    return Limits(
        memory=quantities.size(resources.memory.limit),
        cpus=quantities.millicores(resources.cpu.limit) / 1000,
        disk=quantities.size(resources.ephemeral_storage.limit),
    )


def _variables_of(wish: EnvInstanceCreateRequest) -> dict[str, str]:
    """What else was asked for, as the author's code finds it."""
    variables = {"AENV_DATASOURCE": wish.datasource, "AENV_OWNER": wish.owner or ""}
    if wish.labels:
        variables["AENV_LABELS"] = to_json(wish.labels).decode()
    return {name: value for name, value in variables.items() if value}


def _refuse_inner_networks(network: Network, caller: Caller) -> None:
    """On a platform of many, nobody but its administrator opens the host, or what is behind it, to an instance."""
    if caller.role == "admin":
        return
    if network.mode == "host":
        raise Forbidden("network: only an administrator may give an instance the host's network")
    for inside in AllowList(network.allow).networks:
        # Nothing private is larger than this and has both its ends among public addresses.
        small = inside.prefixlen >= (16 if inside.version == 4 else 32)
        if not (small and is_public(inside[0]) and is_public(inside[-1])):
            raise Forbidden(f"network: {inside} is not all in the internet; only an administrator may open it")


def _network_of(
    env_name: str, wish: EnvInstanceCreateRequest, own: Network, variables: Mapping[str, str], engine: Engine
) -> Network:
    """What the caller asks for, else what the environment's config.json does.

    A config.json alone does not open the host's network: who wrote it need not be who runs it.
    """
    try:
        own = own.resolve_variables(variables)
        asked = Network.parse(wish.network).resolve_variables(variables) if wish.network is not None else None
    except ValueError as error:
        raise ConfigError(f"network: {error}") from None
    if asked is not None and asked.mode not in engine.capabilities.networks:
        raise UsageError(
            f"network: this platform's engine cannot give an instance {asked.config_value}; "
            f"it can give {', '.join(sorted(engine.capabilities.networks))}"
        )
    if asked is None and own.mode == "host" and "loopback" in engine.capabilities.networks:
        raise UsageError(
            f"{env_name} asks for the host's whole network; if you want to give it that, say so: "
            f"Environment(..., network='host')"
        )
    if asked is None and own.mode not in engine.capabilities.networks:
        asked = Network("host")  # of a plain process, which the engine has warned of
    chosen = asked or own
    if chosen.mode == "host":
        log.warning("an instance of %s is in the host's network, with every service that listens there", env_name)
    return chosen
