"""config.json: one model for every key that anything reads.

The file belongs to its author. Values stay as they were written, keys keep their order, and a key that nobody
knows is pointed out and kept. What the values *mean* when several keys speak of the same thing is answered by
``resources()``, ``service()``, ``variables()`` and ``image()``, so that it is decided once.

``python -m aenv.project.manifest`` prints the JSON Schema for editors.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from aenv.errors import ConfigError
from aenv.isolation.network.policy import Network
from aenv.project import jsontext, problems, quantities
from aenv.project.fields import (
    AbsolutePath,
    BaseName,
    Cpu,
    Dependency,
    Name,
    NetworkChoice,
    Size,
    Status,
    TemplateName,
    Ttl,
    Variables,
    Version,
)
from aenv.project.problems import Problem
from aenv.schema import duration

FILE_NAME = "config.json"
DEFAULT_TEMPLATE = "singleContainer"


class Block(BaseModel):
    """An object of the file. Unknown keys are kept; ``document()`` gives the keys back in their order."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        strict=True,
        use_attribute_docstrings=True,
        alias_generator=to_camel,
    )
    _order: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _remember_order(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        block = handler(data)
        if isinstance(data, Mapping):
            block._order = tuple(data)
        return block

    def document(self) -> dict[str, Any]:
        """The object as it goes into the file: what was written, and nothing that is only a default."""
        values = {
            field.alias or name: _plain(getattr(self, name))
            for name, field in type(self).model_fields.items()
            if name in self.model_fields_set
        } | (self.model_extra or {})
        ordered = [key for key in self._order if key in values]
        return {key: values[key] for key in [*ordered, *(key for key in values if key not in self._order)]}


class Artifact(Block):
    """Something that a build made."""

    id: str | None = None
    """The artifact's own id, where its store gives it one."""
    type: str
    """What it is. The first artifact of type `image` is the container image of the environment."""
    content: str
    """Where it is: for an image its full reference, like `registry.example.com/team/my-env:1.0.0`."""


class BuildConfig(Block):
    """How the image is built."""

    model_config = ConfigDict(alias_generator=None)

    dockerfile: str = "./Dockerfile"
    """The Dockerfile, relative to the project."""
    context: str = "."
    """The build context, relative to the project."""
    image_name: str | None = None
    """The image's name. Without it, the environment's name."""
    image_tag: str | None = None
    """The image's tag. Without it, the environment's version."""
    args: Variables = Field(default_factory=dict)
    """Build arguments: what the Dockerfile reads with ARG."""
    build_policy: str = "IfNotPresent"
    """`IfNotPresent` skips a remote build when there is an image already; `Always` does not."""


class TestConfig(Block):
    """How the project is tested."""

    __test__ = False  # pytest would take the name for a test class

    script: str = ""
    """A shell command for `aenv test`, run in the project's directory. Empty: pytest on `tests/`."""


class ServiceKeys(Block):
    """What a long-lived service needs. Read from `deployConfig.service`, then from `deployConfig` itself."""

    replicas: int = Field(default=1, ge=0)
    """How many copies run. With storage there can be only one."""
    port: int = Field(default=8081, ge=1, le=65535)
    """The port that the service listens on."""
    enable_storage: bool = False
    """Keep a volume across restarts."""
    storage_name: str | None = None
    """The volume's name. Without it, the environment's name."""
    storage_size: Size | None = None
    """The volume's size, like `10Gi`. Needed with storage; it can grow, and not shrink."""
    mount_path: AbsolutePath = "/home/admin/data"
    """Where the volume is mounted."""
    service_name: str | None = None
    """The service's name. Without it, one is made from the environment's name."""
    pvc_name: str | None = None
    """Older: another word for `storageName`."""


class ServiceConfig(ServiceKeys):
    """A long-lived service of this environment."""


class DeployConfig(ServiceKeys):
    """What an instance gets when it runs."""

    cpu: Cpu | None = None
    """CPU, both asked for and at most: `1`, `0.5`, `500m`. The older `1C` is understood. Default: 1."""
    memory: Size | None = None
    """Memory, both asked for and at most: `2Gi`, `512Mi`. Default: 2Gi."""
    ephemeral_storage: Size | None = None
    """Scratch space on disk: `5Gi`. Default: 5Gi."""
    os: Literal["linux"] = "linux"
    """The operating system."""
    environment_variables: Variables = Field(default_factory=dict)
    """Variables for every instance. What the caller of an instance sets wins over these."""
    ttl: Ttl | None = None
    """How long an idle instance lives, like `30m` or `1h30m`; there are no days. Empty: the default."""
    network: NetworkChoice = "loopback"
    """What an instance can reach: `none`, its own `loopback`, a `blackhole`, the `host`'s whole network, or a list of
    hosts: names, `*.example.com`, addresses and networks like `10.1.0.0/16`, each with a `:port` if only that one is
    meant."""
    base: BaseName | None = None
    """The system that an instance sees: one that `aenv base add` gave a name on this machine, or a path in the project
    like `./rootfs.tar`. Without it, the programs of the host."""
    fork: bool = True
    """Whether an instance may be a fork of a process that has imported the environment already, which takes
    milliseconds. Forks share their address layout, stack canaries and hash seed, and what native code drew at random
    when it was imported. With `false` each instance is a new program with its own, which takes a second."""
    service: ServiceConfig = Field(default_factory=ServiceConfig)
    """For `aenv service create`."""
    image_prefix: str | None = None
    """Put before an instance's datasource to name the image of its second container."""
    pod_template: TemplateName | None = None
    """`singleContainer` (the default) or `dualContainer`; upper and lower case do not matter."""
    resource: str | None = None
    """Older: `autoscale` was needed for cpu and memory to be applied. They always are now."""

    cpu_request: Cpu | None = None
    """Older: the CPU asked for. Without it, `cpu`."""
    cpu_limit: Cpu | None = None
    """Older: the most CPU. Without it, `cpu`."""
    memory_request: Size | None = None
    """Older: the memory asked for. Without it, `memory`."""
    memory_limit: Size | None = None
    """Older: the most memory. Without it, `memory`."""
    ephemeral_storage_request: Size | None = None
    """Older: the scratch space asked for. Without it, `ephemeralStorage`."""
    ephemeral_storage_limit: Size | None = None
    """Older: the most scratch space. Without it, `ephemeralStorage`."""

    injected_variables: Variables = Field(default_factory=dict, alias="environment_variables")
    """Written by servers: one instance's variables. They win over `environmentVariables`."""
    arguments: list[str] = Field(default_factory=list)
    """Written by servers: arguments for the entry point."""
    owner: str | None = None
    """Written by servers: who asked for the instance."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Written by servers: labels to find the instance by."""
    data_source: str | None = None
    """Written by servers: the datasource that the instance was asked for with."""
    second_image_name: str | None = None
    """Written by servers: the image of the second container."""

    @model_validator(mode="after")
    def _requests_fit_limits(self) -> Self:
        for key, amount, number in (
            ("cpu", self.amount("cpu"), quantities.millicores),
            ("memory", self.amount("memory"), quantities.size),
            ("ephemeralStorage", self.amount("ephemeral_storage"), quantities.size),
        ):
            if number(amount.request) > number(amount.limit):
                raise ValueError(f"{key}Request is {amount.request}, more than {key}Limit, which is {amount.limit}")
        return self

    @model_validator(mode="after")
    def _storage_is_for_one(self) -> Self:
        if self.service_value("enable_storage"):
            if self.service_value("storage_size") is None:
                raise ValueError('enableStorage needs a storageSize, like "10Gi"')
            if self.service_value("replicas") != 1:
                raise ValueError(
                    f"enableStorage works with 1 replica, not {self.service_value('replicas')}: a volume has one writer"
                )
        return self

    def amount(self, what: Literal["cpu", "memory", "ephemeral_storage"]) -> Amount:
        """The shared key, the older request and limit, and the default, merged."""
        both, request, limit = (getattr(self, f"{what}{end}") for end in ("", "_request", "_limit"))
        default = {"cpu": "1", "memory": "2Gi", "ephemeral_storage": "5Gi"}[what]
        spell = quantities.canonical_cpu if what == "cpu" else str
        return Amount(
            request=spell(_first(request, both, limit, default)),
            limit=spell(_first(limit, both, request, default)),
        )

    def service_value(self, name: str) -> Any:
        """A value of the service block, else of this one, else the default."""
        written = self.service if name in self.service.model_fields_set else self
        return getattr(written, name)


class Manifest(Block):
    """An environment's config.json."""

    schema_url: str | None = Field(default=None, alias="$schema")
    """Where an editor finds the JSON Schema of this file."""
    name: Name
    """The environment's name: small letters, digits and dashes."""
    version: Version
    """The version, like `1.0.0`. A published version does not change."""
    description: str = ""
    """What the environment is for, in a sentence."""
    tags: list[str] = Field(default_factory=list)
    """Words to find it by."""
    status: Status = "Ready"
    """How far the environment is."""
    failure_reward: float | dict[str, Any] | None = None
    """The reward of an agent that has destroyed what it would be graded on. Without it, 0.0."""
    code_url: str = ""
    """Where the source code is. `aenv push` fills it in."""
    artifacts: list[Artifact] = Field(default_factory=list)
    """What was built. `aenv build` fills it in."""
    dependencies: list[Dependency] = Field(default_factory=list)
    """Other environments that this one uses, like `tau2@^1.2`."""
    build_config: BuildConfig = Field(default_factory=BuildConfig)
    """How the image is built."""
    test_config: TestConfig = Field(default_factory=TestConfig)
    """How the project is tested."""
    deploy_config: DeployConfig = Field(default_factory=DeployConfig)
    """What an instance gets when it runs."""

    def resources(self) -> Resources:
        """What an instance asks for and may use at most, older keys and defaults included."""
        deploy = self.deploy_config
        return Resources(deploy.amount("cpu"), deploy.amount("memory"), deploy.amount("ephemeral_storage"))

    def service(self) -> ServicePlan:
        """The service that this environment describes, with every default filled in."""
        value = self.deploy_config.service_value
        size = value("storage_size")
        return ServicePlan(
            name=value("service_name"),
            replicas=value("replicas"),
            port=value("port"),
            enable_storage=value("enable_storage"),
            storage_name=value("storage_name") or value("pvc_name") or self.name,
            storage_size=None if size is None else str(size),
            mount_path=value("mount_path"),
        )

    def variables(self) -> dict[str, str]:
        """The instance's variables as a process gets them: all of them text."""
        deploy = self.deploy_config
        merged = {**deploy.environment_variables, **deploy.injected_variables}
        return {name: as_text(value) for name, value in merged.items()}

    def ttl(self) -> duration.Duration | None:
        """The time to live, or None where the file leaves it to the default."""
        return duration.parse(self.deploy_config.ttl) if self.deploy_config.ttl else None

    def network(self) -> Network:
        """What an instance may reach."""
        return Network.parse(self.deploy_config.network)

    def pod_template(self) -> str:
        """The template's name as it is stored: ``DualContainer`` and ``dualcontainer`` are one."""
        given = self.deploy_config.pod_template or DEFAULT_TEMPLATE
        known = {
            "default": DEFAULT_TEMPLATE,
            "singlecontainer": DEFAULT_TEMPLATE,
            "dualcontainer": "dualContainer",
        }
        return known.get(given.lower(), given)

    def image(self) -> str | None:
        """The container image, once there is one."""
        return next((artifact.content for artifact in self.artifacts if artifact.type == "image"), None)


@dataclass(frozen=True)
class Amount:
    """What is asked for and what is the most, as Kubernetes writes them."""

    request: str
    limit: str


@dataclass(frozen=True)
class Resources:
    cpu: Amount
    memory: Amount
    ephemeral_storage: Amount


@dataclass(frozen=True)
class ServicePlan:
    """A service with nothing left open, except a name that its server will choose."""

    name: str | None
    replicas: int
    port: int
    enable_storage: bool
    storage_name: str
    storage_size: str | None
    mount_path: str


@dataclass(frozen=True)
class Loaded:
    manifest: Manifest
    warnings: tuple[str, ...]
    path: Path


def load(path: Path) -> Loaded:
    """Read a config.json, or the one in a directory.

    Raises:
        ConfigError: with every problem of the file, a line each.
    """
    if path.is_dir():
        path /= FILE_NAME
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = "Go to the project's directory, or make a project with: aenv init my-env"
        raise ConfigError(f"there is no {path.name} in {path.absolute().parent}", {"hint": hint}) from None
    except UnicodeDecodeError as error:
        raise problems.refusal(path.name, [Problem("", f"is not UTF-8 text: {error.reason}")]) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    manifest = parse(text, file=path.name)
    warnings = tuple(warning.line(path.name) for warning in problems.unknown_keys(manifest))
    return Loaded(manifest, warnings, path)


def parse(text: str, *, file: str = FILE_NAME) -> Manifest:
    """Read the text of a config.json.

    Raises:
        ConfigError: with every problem of the text, a line each.
    """
    data = jsontext.decode(text, file)
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        raise problems.refusal(file, problems.of_validation(error)) from None


def text(document: Mapping[str, Any]) -> bytes:
    """The file's bytes."""
    try:
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair can be escaped in JSON, and not be written as UTF-8
        return (json.dumps(document, indent=2) + "\n").encode()


def save(manifest: Manifest, path: Path) -> None:
    """Write it, whole or not at all, with every key it was loaded with."""
    raw = text(manifest.document())
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(raw)
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def schema() -> dict[str, Any]:
    """The JSON Schema of the file, for editors and for other languages."""
    body = Manifest.model_json_schema(by_alias=True)
    for block in (body, *body["$defs"].values()):
        for field in block["properties"].values():
            field.pop("title", None)  # made from the key, so it says nothing new
            if field.get("description", "").startswith("Older"):
                field["deprecated"] = True
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **body}


def _plain(value: Any) -> Any:
    if isinstance(value, Block):
        return value.document()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def as_text(value: str | int | float | bool) -> str:
    """A value as a process gets it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))  # noqa: T201 - this is the module's output
