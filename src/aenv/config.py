"""The user's settings: a JSON file, overridden by environment variables.

The file is the first of ``~/.aenv/cli_config.json``, ``.aenv/cli_config.json`` in the working directory and
``/etc/aenv/cli_config.json``. It can hold a password and a token, so only its owner may read it (mode 0600). An invalid
file is reported and never overwritten.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from aenv.errors import ConfigError, UsageError
from aenv.schema import earlier_settings

FILE_NAME = "cli_config.json"


class Group(BaseModel):
    """A group of settings. Unknown keys, which other programs may have written, are kept."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_unset(cls, document: Any) -> Any:
        """Drop nulls: the earlier CLI wrote them for settings that nobody had made."""
        if not isinstance(document, Mapping):
            return document
        return {name: value for name, value in document.items() if value is not None or name not in cls.model_fields}


class BuildArgs(Group):
    """Settings of the image builder."""

    socket: str = "unix:///var/run/docker.sock"
    """Socket of the Docker daemon."""


class RegistryConfig(Group):
    """Registry that images are pushed to."""

    host: str = "docker.io"
    """Host name of the registry."""
    username: str = ""
    """User name for the push; empty: the builder's own login."""
    password: str = ""
    """Password or token of that user."""
    namespace: str = "aenv"
    """Path of an image's name between the registry and the environment's name."""


class UserBuildConfig(Group):
    """Settings of `aenv build`."""

    type: Literal["local"] = "local"
    """Place where images are built: this machine."""
    build_args: BuildArgs = Field(default_factory=BuildArgs)
    registry: RegistryConfig = Field(default_factory=RegistryConfig)


class StorageCustom(Group):
    """Deprecated: options of the archive storage."""

    prefix: str = "~/.aenv/envs"
    """Deprecated: folder for archives. Bundles are stored in the hub."""


class StorageConfig(Group):
    """Deprecated: storage of archives."""

    type: Literal["local", "aenv_hub"] = "local"
    """Deprecated: bundles are always stored in the hub."""
    custom: StorageCustom = Field(default_factory=StorageCustom)


class LoggingConfig(Group):
    """Settings of the log."""

    level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    format: str = ""
    """Deprecated: format of a log line."""
    file: str = ""
    """Deprecated: log file."""
    console: bool = True
    """Deprecated: whether to log to the terminal."""


class HubConfig(Group):
    """The hub that commands use."""

    hub_backend: str = ""
    """URL of the hub; empty: the hub on this machine, which needs no server."""
    api_key: str = ""
    """Token for the hub."""
    timeout: float = Field(default=30, gt=0, le=86400)
    """Timeout of a request in seconds."""


class Settings(Group):
    """All settings of the user."""

    global_mode: Literal["local"] = "local"
    """Place where commands run: this machine."""
    build_config: UserBuildConfig = Field(default_factory=UserBuildConfig)
    storage_config: StorageConfig = Field(default_factory=StorageConfig)
    logging_config: LoggingConfig = Field(default_factory=LoggingConfig)
    hub_config: HubConfig = Field(default_factory=HubConfig)
    system_url: str | None = None
    """URL of the platform; empty: this machine."""
    owner: str | None = None
    """Owner of the instances and versions that commands create."""
    cache_budget: str | int = "20Gi"
    """Size that cached packages, environments and images may take; 0: no limit. What was not used for longest is
    removed first (`aenv cache`)."""


ADDRESSES = ("hub_config.hub_backend", "system_url")
_ADDRESS = re.compile(r"https?://[^\s/]|unix:/|localhost(/|$)|[^\s/]+[.:][^\s/]")
VARIABLES = {
    "hub_config.hub_backend": ("AENV_HUB_URL", "HUB_BACKEND"),
    "hub_config.api_key": ("AENV_API_KEY",),
    "build_config.registry.username": ("AENV_REGISTRY_USERNAME",),
    "build_config.registry.password": ("AENV_REGISTRY_PASSWORD",),
    "system_url": ("AENV_SYSTEM_URL",),
    "cache_budget": ("AENV_CACHE_BUDGET",),
}
"""Environment variables that override a key of the file."""
SHORT = {"hub": "hub_config.hub_backend", "token": "hub_config.api_key", "registry": "build_config.registry.host"}
SECRET = {"hub_config.api_key", "build_config.registry.password"}
HIDDEN = "********"


def cache_folder() -> Path:
    """Return the folder for data that can be downloaded or built again: ``aenv`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "aenv"


def find() -> Path:
    """Return the settings file: AENV_CONFIG, else the first that exists, else the user's own, which need not exist."""
    given = os.environ.get("AENV_CONFIG")
    if given:
        return Path(given).expanduser()
    own = Path.home() / ".aenv" / FILE_NAME
    for path in (own, Path(".aenv") / FILE_NAME, Path("/etc/aenv") / FILE_NAME):
        if path.is_file():
            return path.absolute()
    return own


def load(path: Path | None = None) -> Settings:
    """Return the effective settings: environment variables override the file, which overrides the defaults.

    Raises:
        ConfigError: the file or a variable is not valid.
    """
    document = read(path or find())
    for key, names in VARIABLES.items():
        value = next((os.environ[name] for name in names if os.environ.get(name)), None)
        if value is not None:
            _put(document, key, value)
    return validate(document, "the settings")


def read(path: Path) -> dict[str, Any]:
    """Return the content of the file; an empty dict if it does not exist.

    Raises:
        ConfigError: the file is invalid.
    """
    hint = {"hint": f"Fix or remove {path}; it was not changed."}
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}", hint) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must contain a JSON object, in {{ }}", hint)
    try:
        validate(document, str(path))
    except ConfigError as error:
        raise ConfigError(error.message, hint) from None
    return earlier_settings.translated(document)


def validate(document: Mapping[str, Any], where: str) -> Settings:
    """Validate a document and return it as settings.

    Raises:
        ConfigError: with every problem, one per line. Values are not shown, since one may be a password.
    """
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg'][:1].lower()}{each['msg'][1:]}"
            for each in error.errors(include_input=False, include_url=False)
        ]
        raise ConfigError("\n".join([f"{where}: invalid:", *lines])) from None


def write(document: Mapping[str, Any], path: Path) -> None:
    """Write the file atomically, readable by its owner only."""
    validate(document, str(path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2, ensure_ascii=False)
            file.write("\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def set_value(path: Path, key: str, text: str) -> Any:
    """Change one key of the file and return the parsed value. ``text`` is parsed as JSON only if a string is invalid.

    Raises:
        UsageError: the key is unknown.
        ConfigError: the value or the file is invalid; nothing was written.
    """
    key = resolve(key)
    document = read(path)
    for value in _interpretations(text):
        _put(document, key, value)
        try:
            settings = validate(document, key)
        except ConfigError as error:
            problem = error
            continue
        parsed = value_of(settings, key)
        _check_address(key, parsed)
        _put(document, key, parsed)
        write(document, path)
        return parsed
    raise problem


def _check_address(key: str, value: Any) -> None:
    """Reject a single word as an address: it is a typing mistake more often than the name of a host."""
    if key in ADDRESSES and value and not _ADDRESS.match(str(value)):
        raise ConfigError(f"{key}: '{value}' is not an address; expected something like http://host:8080")


def _interpretations(text: str) -> Iterator[Any]:
    """Yield the typed text itself, then its value as JSON."""
    yield text
    try:
        yield json.loads(text)
    except ValueError:
        return


def resolve(key: str) -> str:
    """Return the full name of a key or group, given short as in ``hub_backend`` or ``build.registry.host``.

    Raises:
        UsageError: the name is unknown or ambiguous.
    """
    known = list(_keys(Settings()))
    if key in known:
        return key
    if key in SHORT:
        return SHORT[key]
    head, _, rest = key.partition(".")
    longer = f"{head}_config" + (f".{rest}" if rest else "")
    if longer in known:
        return longer
    found = [name for name in known if name.endswith(f".{key}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"setting {key!r} is ambiguous; use {' or '.join(found)}")
    close = difflib.get_close_matches(key, [*known, *(name.rpartition(".")[2] for name in known), *SHORT], n=1)
    hint = f"Did you mean {close[0]}?" if close else "List all settings: aenv config show"
    raise UsageError(f"unknown setting {key!r}", {"hint": hint})


def value_of(settings: Settings, key: str) -> Any:
    """Return the value of a key; a dict for a group."""
    value: Any = settings
    for part in key.split("."):
        value = getattr(value, part)
    return value.model_dump() if isinstance(value, Group) else value


def variables_over(key: str) -> list[str]:
    """Return the environment variables that are set and override this key of the file."""
    return [name for name in VARIABLES.get(key, ()) if os.environ.get(name)]


def shown(settings: Settings) -> dict[str, Any]:
    """Return all settings with secrets masked."""
    document = settings.model_dump()
    for key in SECRET:
        if value_of(settings, key):
            _put(document, key, HIDDEN)
    return document


def leaves(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key with its value."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _keys(group: Group, prefix: str = "") -> Iterator[str]:
    for name in type(group).model_fields:
        yield prefix + name
        value = getattr(group, name)
        if isinstance(value, Group):
            yield from _keys(value, f"{prefix}{name}.")


def _put(document: dict[str, Any], key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for name in groups:
        document = document.setdefault(name, {})
    document[last] = value
