"""Checks of the arguments that a program passes to an `Environment`, before anything is started or sent.

A mistake raises `InvalidUse` (fault ``caller``) with the name of the argument and the expected type. Values that can
mean only one thing are converted: ints to floats, tuples to lists, paths to strings.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, SupportsFloat

from aenv.errors import InvalidUse

LONGEST_NAME = 1024
_CONTAINERS = (Mapping, list, tuple, set, frozenset, bytes, bytearray)


def text(name: str, value: object, *, empty: bool = False) -> str:
    """Check a string that can be sent and can name a file: encodable as UTF-8, without NUL characters."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise _wrong_type(name, "a str", value)
    if not value and not empty:
        raise InvalidUse(f"{name} is empty")
    if "\0" in value or (not value.isascii() and any(0xD800 <= ord(letter) < 0xE000 for letter in value)):
        raise InvalidUse(f"{name} contains a NUL character or half of a surrogate pair: {_shown(value)}")
    return value


def optional_text(name: str, value: object) -> str | None:
    """Check a string, or None."""
    return None if value is None else text(name, value)


def one_line(name: str, value: object) -> str | None:
    """Check a string of printable characters, or None."""
    checked = optional_text(name, value)
    if checked is not None and not checked.isprintable():
        raise InvalidUse(f"{name} contains a line break or another control character: {_shown(checked)}")
    return checked


def secret(name: str, value: object) -> str | None:
    """Check a value for an HTTP header. The error message never shows it."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidUse(f"{name} must be a str, not {_type_name(value)}")
    if not (value.isascii() and value.isprintable()):
        raise InvalidUse(f"{name} may only hold printable ASCII characters")
    return value


def env_name(value: object) -> str:
    """Check ``name``, ``name@version`` or the path of a project. Whether it exists is found out later."""
    if isinstance(value, str) and (not value.strip() or value.startswith("@")):
        raise InvalidUse("env_name is empty; expected a name, as in Environment('my-env') or 'my-env@1.0.0'", value)
    name = text("env_name", value)
    if name.endswith("@"):
        raise InvalidUse(f"env_name '{name}' ends with @; write a version after it, or leave it away", name)
    if len(name) > LONGEST_NAME:
        raise InvalidUse(f"env_name has {len(name)} characters; at most {LONGEST_NAME} are allowed")
    return name


@lru_cache(maxsize=256)
def reference(name: str) -> None:
    """Reject a name or a version that no environment can have."""
    from aenv.schema.ref import EnvRef

    try:
        if name != name.strip():
            raise ValueError(f"{name!r} has spaces around it")
        EnvRef.parse(name)
    except ValueError as error:
        raise InvalidUse(str(error), name) from None


def duration(name: str, value: object) -> str:
    """Check a duration with a unit, such as "30m"; the empty string means the default."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise InvalidUse(f"{name} must be a text with a unit, like '{value}s' or '30m', not the number {value!r}")
    if not isinstance(value, str):
        raise _wrong_type(name, "a text with a unit, like '30m'", value)
    if value:
        try:
            _read_duration(value)
        except ValueError as error:
            raise InvalidUse(f"{name}: {error}") from None
    return value


@lru_cache(maxsize=256)
def _read_duration(value: str) -> None:
    from aenv.schema.duration import parse

    if parse(value).seconds <= 0:
        raise ValueError(f"'{value}' is no time at all; write it like '30m'")


def seconds(name: str, value: object) -> float:
    """Check a finite number of seconds above 0."""
    if type(value) not in (int, float) and (
        isinstance(value, str | bytes | bool) or not isinstance(value, SupportsFloat)
    ):
        raise _wrong_type(name, "a number of seconds", value)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise _wrong_type(name, "a number of seconds", value) from None
    if not (math.isfinite(number) and number > 0):
        raise InvalidUse(f"{name} must be a finite number of seconds above 0, not {_shown(value)}")
    return number


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Check an integer in a range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _wrong_type(name, "an int", value) from None
    if isinstance(value, bool):
        raise _wrong_type(name, "an int", value)
    if number < low or (high is not None and number > high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidUse(f"{name} must be {limits}, not {_shown(number)}")
    return number


def flag(name: str, value: object) -> bool:
    """Check a bool; 1 and 0 are accepted."""
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise _wrong_type(name, "True or False", value)


def texts(name: str, value: Any) -> list[str]:
    """Check a list of strings. A single string is rejected as a likely mistake."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(type(value), "__iter__"):
        raise _wrong_type(name, "a list of str", value)
    found = list(value)
    for number, item in enumerate(found):
        if not isinstance(item, str):
            raise _wrong_type(f"{name}[{number}]", "a str", item)
        if "\0" in item:
            raise InvalidUse(f"{name}[{number}] contains a NUL character")
    return found


def quantity(name: str, value: object) -> str | None:
    """Check an amount of a resource, such as ``"4Gi"`` or 0.5; None for the default."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong_type(name, "an amount such as '4Gi' or 0.5", value)
    amount = text(name, str(value))
    try:
        _read_quantity(name == "cpu", amount)
    except ValueError as error:
        raise InvalidUse(f"{name}: {error}") from None
    return amount


@lru_cache(maxsize=256)
def _read_quantity(is_cpu: bool, amount: str) -> None:
    from aenv.schema import quantities

    quantities.millicores(amount) if is_cpu else quantities.size(amount)


def resources(cpu: object, memory: object, storage: object, gpu: object) -> dict[str, str | int | None]:
    """Check the resources of an instance; None for those of its config.json."""
    return {
        "cpu": quantity("cpu", cpu),
        "memory": quantity("memory", memory),
        "storage": quantity("storage", storage),
        "gpu": None if gpu is None else integer("gpu", gpu, 1),
    }


def network(value: Any) -> str | list[str] | None:
    """Check a network mode, or a list of allowed hosts."""
    if value is None:
        return None
    from aenv.isolation.network.policy import Network

    if isinstance(value, bytes | Mapping) or not hasattr(type(value), "__iter__"):
        raise _wrong_type(
            "network", "none, loopback, blackhole or host, or a list of hosts like ['index.example.com']", value
        )
    found = value if isinstance(value, str) else texts("network", value)
    try:
        Network.parse(found)
    except ValueError as error:
        raise InvalidUse(f"network: {error}") from None
    return found


def variables(name: str, value: Any) -> dict[str, str]:
    """Check environment variables and convert their values to strings. None values are left out."""
    if value is None:
        return {}
    found: dict[str, str] = {}
    for key, item in _items(name, value):
        if not key or "=" in key or "\0" in key:
            raise InvalidUse(f"{name}: {_shown(key)} cannot be the name of a variable")
        if isinstance(item, _CONTAINERS):
            raise _wrong_type(f"{name}[{key!r}]", "a str", item)
        if item is not None:
            found[key] = str(item)
            if "\0" in found[key]:
                raise InvalidUse(f"{name}[{key!r}] contains a NUL character")
    return found


def labels(name: str, value: Any) -> dict[str, str]:
    """Check a dict of strings."""
    found = {}
    for key, item in _items(name, {} if value is None else value):
        if not isinstance(item, str):
            raise _wrong_type(f"{name}[{key!r}]", "a str", item)
        found[key] = item
    return found


def mounts(name: str, value: Any) -> list[dict[str, Any]] | None:
    """Check a list of dicts, whose content the platform checks."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(item, Mapping) for item in value):
        raise _wrong_type(name, "a list of dicts", value)
    return [dict(item) for item in value]


def call_arguments(value: Any, name: str = "arguments") -> dict[str, Any]:
    """Check the arguments of a tool, function or reward."""
    if value is None or isinstance(value, dict):
        return value or {}
    return dict(_items(name, value))


def command(value: Any) -> str | list[str]:
    """Check a shell command line, or a program with its arguments."""
    found = value if isinstance(value, str) else texts("command", value)
    if not found:
        raise InvalidUse("command is empty")
    if "\0" in found:
        raise InvalidUse("command contains a NUL character")
    return found


def content(value: Any) -> bytes | str | Path:
    """Check data for an upload."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, bytes | str | Path):
        return value
    raise _wrong_type("data", "bytes, a str or a Path", value)


def standard_input(value: object) -> str | bytes:
    """Check the standard input of a command; any characters are allowed."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str | bytes):
        raise _wrong_type("stdin", "a str or bytes", value)
    return value


def command_details(cwd: object, env: Any, stdin: object) -> dict[str, Any]:
    """Check the working directory, variables and standard input of a command."""
    return {
        "cwd": optional_text("cwd", cwd),
        "variables": variables("env", env),
        "stdin": standard_input(stdin),
    }


def _items(name: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        raise _wrong_type(name, "a dict", value)
    for key in value:
        if not isinstance(key, str):
            raise InvalidUse(f"{name} has the key {_shown(key)}, which is not a str but {_type_name(key)}")
    return list(value.items())


def _wrong_type(name: str, wanted: str, value: object) -> InvalidUse:
    return InvalidUse(f"{name} must be {wanted}, not {_type_name(value)}: {_shown(value)}")


def _type_name(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except Exception:
        shown = "a value without a repr"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
