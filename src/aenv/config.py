"""The user's settings: a file of theirs, and variables that win over it.

The file is the first of ``~/.aenv/cli_config.json``, ``.aenv/cli_config.json`` here and ``/etc/aenv/cli_config.json``.
It can hold a password and a token, so it is written for its owner alone. A file that cannot be understood is reported
and never replaced.
"""

from __future__ import annotations

import difflib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aenv.errors import ConfigError, UsageError

FILE_NAME = "cli_config.json"


class Group(BaseModel):
    """Settings that belong together. What other programs keep in the same file stays there."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)


class BuildArgs(Group):
    """For the image's builder."""

    socket: str = "unix:///var/run/docker.sock"
    """Where Docker listens."""


class RegistryConfig(Group):
    """Where images go."""

    host: str = "docker.io"
    """The registry."""
    username: str = ""
    """Who pushes there; empty: whoever the builder is logged in as."""
    password: str = ""
    """Their password or token."""
    namespace: str = "aenv"
    """The part of an image's name between the registry and the environment."""


class UserBuildConfig(Group):
    """For `aenv build`."""

    type: Literal["local"] = "local"
    """Where images are built."""
    build_args: BuildArgs = Field(default_factory=BuildArgs)
    registry: RegistryConfig = Field(default_factory=RegistryConfig)


class StorageCustom(Group):
    """For the storage's type."""

    prefix: str = "~/.aenv/envs"
    """Older: a folder for archives. Bundles are in the hub."""


class StorageConfig(Group):
    """Older: where archives went."""

    type: Literal["local", "aenv_hub"] = "local"
    """Older: bundles are in the hub either way."""
    custom: StorageCustom = Field(default_factory=StorageCustom)


class LoggingConfig(Group):
    """How much is logged."""

    level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    format: str = ""
    """Older: how a line looks."""
    file: str = ""
    """Older: a file to log to."""
    console: bool = True
    """Older: whether to log to the terminal."""


class HubConfig(Group):
    """Which hub the commands speak to."""

    hub_backend: str = ""
    """The hub's URL; empty: the hub on this machine, which needs no server."""
    api_key: str = ""
    """The token for it."""
    timeout: float = Field(default=30, gt=0, le=86400)
    """Seconds that a request may take."""


class Settings(Group):
    """All of them."""

    global_mode: Literal["local"] = "local"
    """Where commands work."""
    build_config: UserBuildConfig = Field(default_factory=UserBuildConfig)
    storage_config: StorageConfig = Field(default_factory=StorageConfig)
    logging_config: LoggingConfig = Field(default_factory=LoggingConfig)
    hub_config: HubConfig = Field(default_factory=HubConfig)
    system_url: str | None = None
    """The platform's URL; empty: this machine."""
    owner: str | None = None
    """Who instances and versions are said to belong to."""


VARIABLES = {
    "hub_config.hub_backend": ("AENV_HUB_URL", "HUB_BACKEND"),
    "hub_config.api_key": ("AENV_API_KEY",),
    "build_config.registry.username": ("AENV_REGISTRY_USERNAME",),
    "build_config.registry.password": ("AENV_REGISTRY_PASSWORD",),
    "system_url": ("AENV_SYSTEM_URL",),
}
"""Which variables win over the file."""
SHORT = {"hub": "hub_config.hub_backend", "token": "hub_config.api_key", "registry": "build_config.registry.host"}
SECRET = {"hub_config.api_key", "build_config.registry.password"}
HIDDEN = "********"


def cache_folder() -> Path:
    """Where things are kept that can be had again: ``aenv`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "aenv"


def find() -> Path:
    """The file that counts: AENV_CONFIG, else the first that exists, else the user's own, which need not exist."""
    given = os.environ.get("AENV_CONFIG")
    if given:
        return Path(given).expanduser()
    own = Path.home() / ".aenv" / FILE_NAME
    for path in (own, Path(".aenv") / FILE_NAME, Path("/etc/aenv") / FILE_NAME):
        if path.is_file():
            return path.absolute()
    return own


def load(path: Path | None = None) -> Settings:
    """The settings as they count: defaults, then the file, then variables.

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
    """What the file says; nothing when there is none.

    Raises:
        ConfigError: it is not valid.
    """
    hint = {"hint": f"Mend or remove {path}; it was left as it is."}
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}", hint) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold an object, in {{ }}", hint)
    try:
        validate(document, str(path))
    except ConfigError as error:
        raise ConfigError(error.message, hint) from None
    return document


def validate(document: Mapping[str, Any], where: str) -> Settings:
    """The document as settings.

    Raises:
        ConfigError: with every problem, a line each. Values are not repeated: one may be a password.
    """
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg'][:1].lower()}{each['msg'][1:]}"
            for each in error.errors(include_input=False, include_url=False)
        ]
        raise ConfigError("\n".join([f"{where}: not valid:", *lines])) from None


def write(document: Mapping[str, Any], path: Path) -> None:
    """Write the file for its owner alone, whole or not at all."""
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
    """Change one key of the file; the value as it was understood. A text stays a text, whatever it looks like.

    Raises:
        UsageError: there is no such key.
        ConfigError: the value does not fit, or the file is not valid; nothing was written.
    """
    key = resolve(key)
    document = read(path)
    for value in _readings(text):
        _put(document, key, value)
        try:
            settings = validate(document, key)
        except ConfigError as error:
            problem = error
            continue
        understood = value_of(settings, key)
        _put(document, key, understood)
        write(document, path)
        return understood
    raise problem


def _readings(text: str) -> Iterator[Any]:
    """What was typed can mean: itself, else the JSON that it is."""
    yield text
    try:
        yield json.loads(text)
    except ValueError:
        return


def resolve(key: str) -> str:
    """The full name of a key or a group; ``hub_backend``, ``registry.host`` and ``build.registry.host`` are short ones.

    Raises:
        UsageError: it names nothing, or more than one thing.
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
        raise UsageError(f"{key!r} can mean {' or '.join(found)}; say which one")
    close = difflib.get_close_matches(key, [*known, *(name.rpartition(".")[2] for name in known), *SHORT], n=1)
    hint = f"Did you mean {close[0]}?" if close else "See them all: aenv config show"
    raise UsageError(f"there is no setting {key!r}", {"hint": hint})


def value_of(settings: Settings, key: str) -> Any:
    """A key's value; a group's is an object."""
    value: Any = settings
    for part in key.split("."):
        value = getattr(value, part)
    return value.model_dump() if isinstance(value, Group) else value


def variables_over(key: str) -> list[str]:
    """The variables that are set and win over this key of the file."""
    return [name for name in VARIABLES.get(key, ()) if os.environ.get(name)]


def shown(settings: Settings) -> dict[str, Any]:
    """All of them, with secrets hidden."""
    document = settings.model_dump()
    for key in SECRET:
        if value_of(settings, key):
            _put(document, key, HIDDEN)
    return document


def leaves(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value."""
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
