"""How a platform is to be served: a file, variables and options, in this order of growing weight."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from aenv.engines.base import EngineOptions
from aenv.errors import ConfigError
from aenv.platform.access.platform_tokens import Allowance
from aenv.platform.instances.admission import Capacity
from aenv.platform.operations.engine_factory import validate_engine_name
from aenv.project import quantities
from aenv.runtime.serve import is_loopback
from aenv.schema import paths
from aenv.storage.open_url import data_folder

DEFAULT_ENGINE = "native"


class PlatformLimits(BaseModel):
    """What every token may use unless it says more or less itself; 0: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instances: int = Field(default=0, ge=0)
    cpus: float = Field(default=0.0, ge=0)
    memory: str | int = 0
    """Like 64Gi."""
    creates_per_second: float = Field(default=100.0, ge=0)

    @field_validator("memory")
    @classmethod
    def _is_a_size(cls, value: str | int) -> str | int:
        if value:
            quantities.size(value)
        return value

    @property
    def allowance(self) -> Allowance:
        """The same, in numbers."""
        memory = quantities.size(self.memory) if self.memory else 0
        return Allowance(
            instances=self.instances, cpus=self.cpus, memory=memory, creates_per_second=self.creates_per_second
        )


class ServeSettings(BaseModel):
    """All of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=paths.CONTROL_PORT, ge=0, le=65535)
    """For the control plane."""
    data_port: int = Field(default=paths.DATA_PORT, ge=0, le=65535)
    """For the data plane."""
    one_port: bool = False
    """Both planes on ``port`` alone."""
    prefix: str = Field(default="", pattern=r"^(/[A-Za-z0-9._~-]+)*$")
    """A path before all paths, as a proxy in front passes it on."""
    tls_cert: str = ""
    """The file of the certificate to show, in PEM; empty: no TLS."""
    tls_key: str = ""
    """The file of its key."""
    public_url: str = Field(default="", pattern=r"^(https?://[!-~]+)?$")
    """Where users reach the platform, for URLs that it gives out; empty: where they asked for one."""
    auth: bool | None = None
    """Whether callers need a token; None: wherever others can reach it."""
    store: str = ""
    """Where tokens and records are: a file, or redis://HOST; empty: platform/platform.db in the data folder."""
    advertise: str = Field(default="", pattern=r"^(https?://[!-~]+)?$")
    """Where other servers on the same store reach this one; empty: found out."""
    hub: str = ""
    """The URL of the hub to take environments from; empty: a hub in this same server."""
    hub_token: str = Field(default="", repr=False)
    hub_quota: str | int = "50Gi"
    """Storage that a user's environments may occupy in the hub of this server, unless set otherwise; 0: no limit."""
    base_limit: str | int = "16Gi"
    """What an image that a project brings as its base may have when it is unpacked, at most 32Gi; 0: none is used."""
    engine: str = DEFAULT_ENGINE
    """What instances are: the name of an engine, or the URL of a service that makes them."""
    engine_token: str = Field(default="", repr=False)
    """For that service."""
    pool: int = Field(default=8, ge=0)
    """Sandboxes of one kind to have ready, at the most."""
    fork: bool = True
    """Whether instances may be forks of a common parent; else each is a new program, with an address layout, stack
    canaries and hash seed of its own. An environment can ask for that with `deployConfig.fork`."""
    audit: str = ""
    """The file for the audit log; empty: platform/audit.jsonl in the data folder."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Serve ``/metrics`` without a token to this machine alone, on 127.0.0.1 at this port; None: it is not."""
    log_format: Literal["text", "json"] = "text"
    """How lines of the log are written."""
    max_instances: int = Field(default=0, ge=0)
    """Instances that there is room for, of everybody together; 0: no limit."""
    max_creating: int = Field(default=0, ge=0)
    """Instances that are made at the same time; 0: no limit."""
    queue_seconds: float = Field(default=60.0, ge=0)
    """Seconds that a create waits for room at the most; a request may ask for less."""
    grace: float = Field(default=10.0, ge=0)
    """Seconds that requests under way have to finish when the server is stopped."""
    adopt_within: float = Field(default=60.0, ge=0)
    """Seconds that instances live on without a server, for the next one to find them again; 0: they end with it."""
    limits: PlatformLimits = Field(default_factory=PlatformLimits)

    @field_validator("engine")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return validate_engine_name(value)

    def engine_options(self, group: str) -> EngineOptions:
        """Return what the engine is constructed with. ``group``: name of the control group for its sandboxes."""
        return EngineOptions(
            self.pool, group, self.fork, self.base_limit_bytes, url=self.engine, token=self.engine_token
        )

    @property
    def open_to_others(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self.host)

    @property
    def with_auth(self) -> bool:
        """Whether callers need a token."""
        return self.open_to_others if self.auth is None else self.auth

    @property
    def who_may_call(self) -> str:
        """Who may use the platform, in words."""
        if self.with_auth:
            return "with a token"
        if self.open_to_others:
            return f"everyone who can reach {self.host}, without a token"
        return "everyone on this machine"

    @field_validator("hub_quota", "base_limit")
    @classmethod
    def _is_a_size(cls, value: str | int) -> str | int:
        if value not in (0, "0"):
            quantities.size(value)
        return value

    @property
    def base_limit_bytes(self) -> int:
        """The same in bytes."""
        return 0 if self.base_limit in (0, "0") else quantities.size(self.base_limit)

    @property
    def hub_quota_bytes(self) -> int:
        """The same in bytes."""
        return 0 if self.hub_quota in (0, "0") else quantities.size(self.hub_quota)

    @property
    def capacity(self) -> Capacity:
        """How much there is room for."""
        return Capacity(self.max_instances, self.max_creating, self.queue_seconds, self.queue_seconds)

    @property
    def folder(self) -> Path:
        """What belongs to the platform alone."""
        return data_folder() / "platform"

    @property
    def store_url(self) -> str:
        """Where tokens and records are."""
        return self.store or f"sqlite:{self.folder / 'platform.db'}"

    @property
    def is_shared(self) -> bool:
        """Whether there may be other servers on the same store."""
        return self.store_url.partition(":")[0] in ("redis", "rediss", "unix")

    @property
    def audit_file(self) -> Path:
        """Where it is written down who did what."""
        return Path(self.audit).expanduser() if self.audit else self.folder / "audit.jsonl"


def load(file: Path | None, given: Mapping[str, Any]) -> ServeSettings:
    """What the file says, and over it what was ``given``, None being nothing.

    Raises:
        ConfigError: with every problem, a line each. Values are not repeated: one may be a token.
    """
    document = _read(file) if file is not None else {}
    document |= {name: value for name, value in given.items() if value is not None}
    try:
        return ServeSettings.model_validate(document)
    except ValidationError as error:
        where = str(file) if file is not None else "the settings"
        lines = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors(include_input=False, include_url=False)
        ]
        hint = {"hint": f"Known settings: {', '.join(ServeSettings.model_fields)}"}
        raise ConfigError("\n".join([f"{where}: not valid:", *lines]), hint) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
