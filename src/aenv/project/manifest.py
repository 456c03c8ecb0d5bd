"""The model of config.json: every key that any part of aenv reads.

The file belongs to its author: values stay as they were written, keys keep their order, and an unknown key is kept with
a warning. Where several keys describe the same thing, ``resources()``, ``service()``, ``variables()`` and ``image()``
merge them.

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
from aenv.project import jsontext, problems
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
from aenv.schema import duration, quantities

FILE_NAME = "config.json"
DEFAULT_TEMPLATE = "singleContainer"


class Block(BaseModel):
    """A JSON object of the file. Unknown keys are kept; ``document()`` returns the keys in their original order."""

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
        """Return the object for the file: the keys that were written, without defaults."""
        values = {
            field.alias or name: _plain(getattr(self, name))
            for name, field in type(self).model_fields.items()
            if name in self.model_fields_set
        } | (self.model_extra or {})
        ordered = [key for key in self._order if key in values]
        return {key: values[key] for key in [*ordered, *(key for key in values if key not in self._order)]}


class Artifact(Block):
    """An output of a build."""

    id: str | None = None
    """Id of the artifact, if its store has assigned one."""
    type: str
    """Type of the artifact. The first one of type `image` is the container image of the environment."""
    content: str
    """Location of the artifact: for an image its full reference, like `registry.example.com/team/my-env:1.0.0`."""


class BuildConfig(Block):
    """Options of the image build."""

    model_config = ConfigDict(alias_generator=None)

    dockerfile: str = "./Dockerfile"
    """Path of the Dockerfile, relative to the project."""
    context: str = "."
    """Path of the build context, relative to the project."""
    image_name: str | None = None
    """Name of the image. Default: the environment's name."""
    image_tag: str | None = None
    """Tag of the image. Default: the environment's version."""
    args: Variables = Field(default_factory=dict)
    """Build arguments, which the Dockerfile reads with ARG."""
    build_policy: str = "IfNotPresent"
    """`IfNotPresent` skips a remote build if the image exists already; `Always` does not."""


class TestConfig(Block):
    """Options of `aenv test`."""

    __test__ = False  # pytest would collect it as a test class

    script: str = ""
    """A shell command for `aenv test`, run in the project's directory. Empty: pytest on `tests/`."""


class Timeouts(Block):
    """Time limits that the environment sets itself. A caller's own limits apply as well."""

    startup: Ttl | None = None
    """Time limit for starting an instance, like `2m`. Default: the caller's."""
    call: Ttl | None = None
    """Time limit of one call of a tool, function or reward, like `90s`. Default: the caller's."""


class ServiceKeys(Block):
    """Options of a long-lived service. Read from `deployConfig.service`, then from `deployConfig` itself."""

    replicas: int = Field(default=1, ge=0)
    """Number of replicas. A service with storage has exactly one."""
    port: int = Field(default=8081, ge=1, le=65535)
    """Port that the service listens on."""
    enable_storage: bool = False
    """Keep a volume across restarts."""
    storage_name: str | None = None
    """Name of the volume. Default: the environment's name."""
    storage_size: Size | None = None
    """Size of the volume, like `10Gi`. Required with storage; it can grow but not shrink."""
    mount_path: AbsolutePath = "/home/admin/data"
    """Mount point of the volume."""
    service_name: str | None = None
    """Name of the service. Default: made from the environment's name."""
    pvc_name: str | None = None
    """Deprecated: alias of `storageName`."""


class ServiceConfig(ServiceKeys):
    """A long-lived service of this environment."""


class DeployConfig(ServiceKeys):
    """Resources, variables, network and life time of an instance."""

    cpu: Cpu | None = None
    """CPU, as request and limit: `1`, `0.5`, `500m`. The older `1C` is accepted. Default: 1."""
    memory: Size | None = None
    """Memory, as request and limit: `2Gi`, `512Mi`. Default: 2Gi."""
    ephemeral_storage: Size | None = None
    """Size of the files that an instance writes: `5Gi`. Default: 5Gi. Where they live in memory, they count against
    `memory`, and half of that is the limit if it is lower."""
    ephemeral_storage_medium: Literal["auto", "memory", "disk"] = "auto"
    """Medium of the files that an instance writes: `memory`, `disk`, or the one that the engine uses (`auto`). An
    engine that cannot do it refuses to create the instance."""
    os: Literal["linux"] = "linux"
    """Operating system."""
    environment_variables: Variables = Field(default_factory=dict)
    """Environment variables of every instance. Those given when an instance is created override them."""
    ttl: Ttl | None = None
    """Time to live of an instance that is neither released nor renewed, like `30m` or `1h30m`; days have no unit.
    Empty: the default."""
    network: NetworkChoice = "loopback"
    """Network of an instance: `none`, its own `loopback`, a `blackhole`, the whole network of the `host`, or a list of
    allowed hosts: names, `*.example.com`, addresses and networks like `10.1.0.0/16`, each with a `:port` to allow
    only that port."""
    base: BaseName | None = None
    """Root file system of an instance: a base that `aenv base add` has named on this machine, or a path in the project
    like `./rootfs.tar`. Default: the programs of the host."""
    fork: bool = True
    """Allow instances to be forks of a process that has imported the environment already, which takes milliseconds.
    Forks share the address layout, stack canaries, hash seed, and random state of native code from the import. With
    `false`, each instance is a new process with its own, which takes some 0.4 s."""
    isolation: Literal["namespaces", "confined"] | None = None
    """Weakest isolation level to run at. `namespaces`: refuse a platform that runs instances without them. `confined`:
    refuse only one without any isolation. Default: whatever the platform's administrator has chosen."""
    environments: list[Dependency] = Field(default_factory=list)
    """Environments that code in an instance may open with `Environment(...)`, like `tau2` or `tau2@^1.2`. They run
    beside it, for the same user, and end with it."""
    service: ServiceConfig = Field(default_factory=ServiceConfig)
    """Options of `aenv service create`."""
    image_prefix: str | None = None
    """Prefix of the second container's image name; the instance's datasource follows it."""
    pod_template: TemplateName | None = None
    """`singleContainer` (the default) or `dualContainer`; case-insensitive."""
    resource: str | None = None
    """Deprecated: `autoscale` was needed to apply cpu and memory. They are always applied now."""

    cpu_request: Cpu | None = None
    """Deprecated: CPU request. Default: `cpu`."""
    cpu_limit: Cpu | None = None
    """Deprecated: CPU limit. Default: `cpu`."""
    memory_request: Size | None = None
    """Deprecated: memory request. Default: `memory`."""
    memory_limit: Size | None = None
    """Deprecated: memory limit. Default: `memory`."""
    ephemeral_storage_request: Size | None = None
    """Deprecated: scratch space request. Default: `ephemeralStorage`."""
    ephemeral_storage_limit: Size | None = None
    """Deprecated: scratch space limit. Default: `ephemeralStorage`."""

    injected_variables: Variables = Field(default_factory=dict, alias="environment_variables")
    """Written by servers: variables of one instance. They override `environmentVariables`."""
    arguments: list[str] = Field(default_factory=list)
    """Written by servers: arguments for the entry point."""
    owner: str | None = None
    """Written by servers: owner of the instance."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Written by servers: labels to find the instance by."""
    data_source: str | None = None
    """Written by servers: datasource that the instance was created with."""
    second_image_name: str | None = None
    """Written by servers: image of the second container."""

    @model_validator(mode="after")
    def _requests_fit_limits(self) -> Self:
        for key, amount, number in (
            ("cpu", self.amount("cpu"), quantities.millicores),
            ("memory", self.amount("memory"), quantities.size),
            ("ephemeralStorage", self.amount("ephemeral_storage"), quantities.size),
        ):
            if number(amount.request) > number(amount.limit):
                raise ValueError(f"{key}Request ({amount.request}) exceeds {key}Limit ({amount.limit})")
        return self

    @model_validator(mode="after")
    def _storage_is_for_one(self) -> Self:
        if self.service_value("enable_storage"):
            if self.service_value("storage_size") is None:
                raise ValueError('enableStorage needs a storageSize, like "10Gi"')
            if self.service_value("replicas") != 1:
                raise ValueError(
                    f"enableStorage needs 1 replica, not {self.service_value('replicas')}: a volume has one writer"
                )
        return self

    def amount(self, what: Literal["cpu", "memory", "ephemeral_storage"]) -> Amount:
        """Return request and limit, merged from the common key, the deprecated keys and the default."""
        both, request, limit = (getattr(self, f"{what}{end}") for end in ("", "_request", "_limit"))
        default = {"cpu": "1", "memory": "2Gi", "ephemeral_storage": "5Gi"}[what]
        spell = quantities.canonical_cpu if what == "cpu" else str
        return Amount(
            request=spell(_first(request, both, limit, default)),
            limit=spell(_first(limit, both, request, default)),
        )

    def service_value(self, name: str) -> Any:
        """Return a value of the service block, else of this block, else the default."""
        written = self.service if name in self.service.model_fields_set else self
        return getattr(written, name)


class Manifest(Block):
    """The config.json of an environment."""

    schema_url: str | None = Field(default=None, alias="$schema")
    """JSON Schema of this file, for editors."""
    name: Name
    """Name of the environment: lower-case letters, digits and dashes."""
    version: Version
    """Version, like `1.0.0`. A published version does not change."""
    description: str = ""
    """Purpose of the environment, in a sentence."""
    tags: list[str] = Field(default_factory=list)
    """Tags for search."""
    status: Status = "Ready"
    """Stage of the environment."""
    failure_reward: float | dict[str, Any] | None = None
    """Reward of an agent that has destroyed what it would be graded on. Default: 0.0."""
    argument_types: Literal["strict", "lenient"] = "strict"
    """`lenient`: tools accept numbers and flags that are sent as text. Functions and rewards always do, and then get
    what cannot be converted as it was sent."""
    compatibility: Literal["0.1"] | None = None
    """`0.1`: behave as version 0.1 where it matters: `argumentTypes` is lenient, and of several rewards the first
    answers a caller who names none."""
    protocol_version: Literal["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"] | None = None
    """Oldest MCP revision that clients of the environment have to speak, such as `2025-06-18`. For people and for
    clients: the server speaks them all."""
    timeouts: Timeouts = Field(default_factory=Timeouts)
    """Time limits that the environment sets itself."""
    code_url: str = ""
    """URL of the source code. `aenv push` writes it."""
    artifacts: list[Artifact] = Field(default_factory=list)
    """Outputs of the build. `aenv build` writes them."""
    dependencies: list[Dependency] = Field(default_factory=list)
    """Other environments that this one uses, like `tau2@^1.2`."""
    build_config: BuildConfig = Field(default_factory=BuildConfig)
    """Options of the image build."""
    test_config: TestConfig = Field(default_factory=TestConfig)
    """Options of `aenv test`."""
    deploy_config: DeployConfig = Field(default_factory=DeployConfig)
    """Resources, variables, network and life time of an instance."""

    def resources(self) -> Resources:
        """Return requests and limits of an instance, including deprecated keys and defaults."""
        deploy = self.deploy_config
        return Resources(deploy.amount("cpu"), deploy.amount("memory"), deploy.amount("ephemeral_storage"))

    def service(self) -> ServicePlan:
        """Return the options of the service, with all defaults filled in."""
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
        """Return the instance's environment variables as strings."""
        deploy = self.deploy_config
        merged = {**deploy.environment_variables, **deploy.injected_variables, **self._choices()}
        return {name: as_text(value) for name, value in merged.items()}

    def _choices(self) -> dict[str, str]:
        """Return the variables that tell the runtime about the author's choices."""
        choices = {}
        if self.argument_types == "lenient" or self.compatibility:
            choices["AENV_ARGUMENT_TYPES"] = "lenient"
        if self.compatibility:
            choices["AENV_COMPATIBILITY"] = self.compatibility
        if self.timeouts.call:
            choices["AENV_CALL_TIMEOUT"] = f"{duration.parse(self.timeouts.call).seconds:g}"
        if self.deploy_config.environments:
            choices["AENV_ENVIRONMENTS"] = ",".join(self.deploy_config.environments)
        return choices

    def ttl(self) -> duration.Duration | None:
        """Return the time to live; None if the file does not set it."""
        return duration.parse(self.deploy_config.ttl) if self.deploy_config.ttl else None

    def startup_seconds(self) -> float | None:
        """Return the time limit for starting an instance; None if the file does not set it."""
        return duration.parse(self.timeouts.startup).seconds if self.timeouts.startup else None

    def network(self) -> Network:
        """Return the network policy of an instance."""
        return Network.parse(self.deploy_config.network)

    def pod_template(self) -> str:
        """Return the canonical name of the template; case is ignored."""
        given = self.deploy_config.pod_template or DEFAULT_TEMPLATE
        known = {
            "default": DEFAULT_TEMPLATE,
            "singlecontainer": DEFAULT_TEMPLATE,
            "dualcontainer": "dualContainer",
        }
        return known.get(given.lower(), given)

    def image(self) -> str | None:
        """Return the container image, if one has been built."""
        return next((artifact.content for artifact in self.artifacts if artifact.type == "image"), None)


@dataclass(frozen=True)
class Amount:
    """Request and limit of a resource, in the notation of Kubernetes."""

    request: str
    limit: str


@dataclass(frozen=True)
class Resources:
    cpu: Amount
    memory: Amount
    ephemeral_storage: Amount


@dataclass(frozen=True)
class ServicePlan:
    """Options of a service. Without a name, the server chooses one."""

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
        ConfigError: with every problem of the file, one per line.
    """
    if path.is_dir():
        path /= FILE_NAME
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = "Change to the project's directory, or create a project with: aenv init my-env"
        raise ConfigError(f"no {path.name} in {path.absolute().parent}", {"hint": hint}) from None
    except UnicodeDecodeError as error:
        raise problems.config_error(path.name, [Problem("", f"is not UTF-8 text: {error.reason}")]) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    manifest = parse(text, file=path.name)
    warnings = tuple(warning.line(path.name) for warning in problems.unknown_keys(manifest))
    return Loaded(manifest, warnings, path)


def parse(text: str, *, file: str = FILE_NAME) -> Manifest:
    """Parse the text of a config.json.

    Raises:
        ConfigError: with every problem of the text, one per line.
    """
    data = jsontext.decode(text, file)
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        raise problems.config_error(file, problems.of_validation(error)) from None


def text(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of the file."""
    try:
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can escape it, UTF-8 cannot encode it
        return (json.dumps(document, indent=2) + "\n").encode()


def save(manifest: Manifest, path: Path) -> None:
    """Write the file atomically, with every key that was loaded."""
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
    """Return the JSON Schema of the file, for editors and for other languages."""
    body = Manifest.model_json_schema(by_alias=True)
    for block in (body, *body["$defs"].values()):
        for field in block["properties"].values():
            field.pop("title", None)  # generated from the key, so it adds nothing
            if field.get("description", "").startswith("Deprecated"):
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
    """Return a value as the string that a process gets."""
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))  # noqa: T201 - this is the module's output
