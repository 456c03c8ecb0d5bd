"""Settings of ``aenv serve`` from a file, environment variables and options; the later override the earlier."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from aenv.engines.base import EngineOptions
from aenv.errors import ConfigError
from aenv.platform.access.platform_tokens import Allowance
from aenv.platform.instances.admission import Capacity
from aenv.platform.operations.engine_factory import validate_engine_name
from aenv.runtime.serve import is_loopback
from aenv.schema import paths, quantities
from aenv.storage.open_url import data_folder

DEFAULT_ENGINE = "native"
TRACE_URL = r"^(https?://[!-~]*\{trace\}[!-~]*)?$"
_EXAMPLES = {"prefix": "/aenv", "public_url": "https://aenv.example.com", "advertise": "http://10.0.0.5:8080",
             "trace_url": "https://jaeger.example/trace/{trace}"}  # fmt: skip
"""Examples of the settings that have a pattern."""


class PlatformLimits(BaseModel):
    """Default quota of a token; 0: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instances: int = Field(default=0, ge=0)
    cpus: float = Field(default=0.0, ge=0)
    memory: str | int = 0
    """A size like 64Gi."""
    creates_per_second: float = Field(default=100.0, ge=0)

    @field_validator("memory")
    @classmethod
    def _is_a_size(cls, value: str | int) -> str | int:
        if value:
            quantities.size(value)
        return value

    @property
    def allowance(self) -> Allowance:
        """The quota in plain numbers."""
        memory = quantities.size(self.memory) if self.memory else 0
        return Allowance(
            instances=self.instances, cpus=self.cpus, memory=memory, creates_per_second=self.creates_per_second
        )


class ServeSettings(BaseModel):
    """Settings of a platform server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=paths.CONTROL_PORT, ge=0, le=65535)
    """Port of the control plane."""
    data_port: int = Field(default=paths.DATA_PORT, ge=0, le=65535)
    """Port of the data plane."""
    one_port: bool = False
    """Serve both planes on ``port`` alone."""
    prefix: str = Field(default="", pattern=r"^(/[A-Za-z0-9._~-]+)*$")
    """Path prefix that a proxy in front leaves on requests."""
    tls_cert: str = ""
    """File of the TLS certificate, in PEM; empty: no TLS."""
    tls_key: str = ""
    """File of its private key."""
    public_url: str = Field(default="", pattern=r"^(https?://[!-~]+)?$")
    """URL at which users reach the platform, for the URLs that it issues; empty: from the request."""
    auth: bool | None = None
    """Require a token; None: only if other machines can reach the server."""
    admin_token: str = Field(default="", repr=False)
    """Token of an administrator, to be created at the start; empty: the first start makes one and shows it."""
    store: str = ""
    """Store for tokens and records: a file, or redis://HOST; empty: platform/platform.db in the data folder."""
    advertise: str = Field(default="", pattern=r"^(https?://[!-~]+)?$")
    """URL at which other servers on the same store reach this one; empty: detected."""
    hub: str = ""
    """URL of the hub to take environments from; empty: a hub embedded in this server."""
    hub_token: str = Field(default="", repr=False)
    hub_quota: str | int = "50Gi"
    """Storage per user in the embedded hub, unless set otherwise; 0: no limit."""
    base_limit: str | int = "16Gi"
    """Maximum unpacked size of a base image in a project, at most 32Gi; 0: base images are not used."""
    engine: str = DEFAULT_ENGINE
    """Engine that runs instances: a name, or the URL of a service."""
    engine_token: str = Field(default="", repr=False)
    """Token for an engine at a URL."""
    pool: int = Field(default=8, ge=0)
    """Maximum number of sandboxes of one kind to keep ready."""
    fork: bool = True
    """Fork instances from a preloaded parent. Without it, each is a new program with an address layout, stack canaries
    and hash seed of its own. An environment can ask for that with `deployConfig.fork`."""
    isolation: Literal["namespaces", "confined", "auto"] = "namespaces"
    """Isolation level of the native engine's instances. ``confined``: without namespaces, in containers that forbid
    them. ``auto``: ``namespaces`` where the host allows them, else ``confined``."""
    datasource_roots: tuple[str, ...] = ()
    """Folders of this machine that a datasource may name, to be shown read-only in instances."""
    audit: str = ""
    """File of the audit log; empty: platform/audit.jsonl in the data folder."""
    model_urls: list[str] = Field(default_factory=list)
    """Model endpoints that rollouts may use; any, where only this machine's owner can reach the platform."""
    blobs: str = ""
    """Storage of trajectories: a folder, or s3://BUCKET/PREFIX; empty: platform/blobs in the data folder."""
    trajectory_quota: str | int = "50Gi"
    """Compressed size of the trajectories of a user; 0: no limit."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Serve ``/metrics`` without a token on 127.0.0.1 at this port; None: do not."""
    console: bool = True
    """Serve the web console at ``/console/``."""
    trace_url: str = Field(default="", pattern=TRACE_URL)
    """Address of a trace for the console's links, with ``{trace}`` for the id; empty: no links."""
    log_format: Literal["text", "json"] = "text"
    """Format of log lines."""
    max_instances: int = Field(default=0, ge=0)
    """Maximum number of instances of all users; 0: as many as the machine has room for."""
    max_creating: int = Field(default=0, ge=0)
    """Maximum number of concurrent creates; 0: no limit."""
    queue_seconds: float = Field(default=60.0, ge=0)
    """Maximum seconds that a create waits for capacity; a request may ask for less."""
    grace: float = Field(default=10.0, ge=0)
    """Seconds that open requests have to finish when the server stops."""
    adopt_within: float = Field(default=60.0, ge=0)
    """Seconds that instances outlive the server, for the next one to adopt them; 0: they end with it."""
    limits: PlatformLimits = Field(default_factory=PlatformLimits)

    @field_validator("engine")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return validate_engine_name(value)

    def engine_options(self, group: str) -> EngineOptions:
        """Return the options of the engine. ``group``: name of the control group for its sandboxes."""
        return EngineOptions(
            self.pool,
            group,
            self.fork,
            self.base_limit_bytes,
            url=self.engine,
            token=self.engine_token,
            isolation=self.isolation,
        )

    @property
    def open_to_others(self) -> bool:
        """True if other machines can reach the server."""
        return not is_loopback(self.host)

    @property
    def with_auth(self) -> bool:
        """True if callers need a token."""
        return self.open_to_others if self.auth is None else self.auth

    @property
    def who_may_call(self) -> str:
        """Description of who may use the platform."""
        if self.with_auth:
            return "with a token"
        if self.open_to_others:
            return f"everyone who can reach {self.host}, without a token"
        return "everyone on this machine"

    @field_validator("hub_quota", "base_limit", "trajectory_quota")
    @classmethod
    def _is_a_size(cls, value: str | int) -> str | int:
        if value not in (0, "0"):
            quantities.size(value)
        return value

    @property
    def base_limit_bytes(self) -> int:
        """`base_limit` in bytes."""
        return 0 if self.base_limit in (0, "0") else quantities.size(self.base_limit)

    @property
    def hub_quota_bytes(self) -> int:
        """`hub_quota` in bytes."""
        return 0 if self.hub_quota in (0, "0") else quantities.size(self.hub_quota)

    @property
    def trajectory_quota_bytes(self) -> int:
        """`trajectory_quota` in bytes."""
        return 0 if self.trajectory_quota in (0, "0") else quantities.size(self.trajectory_quota)

    @property
    def blobs_url(self) -> str:
        """URL of the storage of trajectories."""
        return self.blobs or str(self.folder / "blobs")

    @property
    def capacity(self) -> Capacity:
        """Capacity for instances."""
        return Capacity(self.max_instances, self.max_creating, self.queue_seconds, self.queue_seconds)

    @property
    def folder(self) -> Path:
        """Data folder of the platform."""
        return data_folder() / "platform"

    @property
    def store_url(self) -> str:
        """URL of the store for tokens and records."""
        return self.store or f"sqlite:{self.folder / 'platform.db'}"

    @property
    def is_shared(self) -> bool:
        """True if other servers may use the same store."""
        return self.store_url.partition(":")[0] in ("redis", "rediss", "unix")

    @property
    def audit_file(self) -> Path:
        """Path of the audit log."""
        return Path(self.audit).expanduser() if self.audit else self.folder / "audit.jsonl"


def load(file: Path | None, given: Mapping[str, Any]) -> ServeSettings:
    """Load the settings of a file, overridden by ``given`` where that is not None.

    Raises:
        ConfigError: lists every problem on a line of its own. Values are not repeated: one may be a token.
    """
    document = _read(file) if file is not None else {}
    document |= {name: value for name, value in given.items() if value is not None}
    try:
        return ServeSettings.model_validate(document)
    except ValidationError as error:
        where = str(file) if file is not None else "options and variables"
        lines = [
            f"{'.'.join(map(str, each['loc']))}: {_message(each)}"
            for each in error.errors(include_input=False, include_url=False)
        ]
        hint = {"hint": f"Known settings: {', '.join(ServeSettings.model_fields)}"}
        raise ConfigError("\n".join([f"invalid settings in {where}:", *lines]), hint) from None


def _message(error: ErrorDetails) -> str:
    if error["type"] == "string_pattern_mismatch":
        return f"invalid value; write it like {_EXAMPLES[str(error['loc'][-1])]}"
    if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
        close = difflib.get_close_matches(str(error["loc"][0]), ServeSettings.model_fields, n=1)
        return f"unknown setting{f'; did you mean {close[0]}?' if close else ''}"
    return error["msg"].removeprefix("Value error, ")


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
