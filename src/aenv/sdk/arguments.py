"""Checks of what a program passes to an `Environment`, made before anything is started or sent.

A mistake is an `InvalidUse`, whose fault is the caller's, with the name of the argument and what it should be. What
callers have passed all along and can only mean one thing is taken: ints for floats, tuples for lists, paths for texts.
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
    """A text that can be sent and can name a file: UTF-8 can carry it, and there is no NUL in it."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise _wrong(name, "a str", value)
    if not value and not empty:
        raise InvalidUse(f"{name} is empty")
    if "\0" in value or (not value.isascii() and any(0xD800 <= ord(letter) < 0xE000 for letter in value)):
        raise InvalidUse(f"{name} has a NUL character or half of a surrogate pair in it: {_shown(value)}")
    return value


def optional_text(name: str, value: object) -> str | None:
    """A text, or None."""
    return None if value is None else text(name, value)


def secret(name: str, value: object) -> str | None:
    """What is sent in a header; the message never repeats it."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidUse(f"{name} must be a str, not {_kind(value)}")
    if not (value.isascii() and value.isprintable()):
        raise InvalidUse(f"{name} may only hold printable ASCII characters")
    return value


def env_name(value: object) -> str:
    """``name`` or ``name@version``, or the path of a project. Whether there is one is found out later."""
    if isinstance(value, str) and (not value.strip() or value.startswith("@")):
        raise InvalidUse("an environment has a name: Environment('my-env') or 'my-env@1.0.0'", value)
    name = text("env_name", value)
    if len(name) > LONGEST_NAME:
        raise InvalidUse(f"env_name has {len(name)} characters; at most {LONGEST_NAME} are allowed")
    return name


@lru_cache(maxsize=256)
def reference(name: str) -> None:
    """Refuse a name or a version that no environment can have."""
    from aenv.schema.ref import EnvRef

    try:
        if name != name.strip():
            raise ValueError(f"{name!r} has spaces around it")
        EnvRef.parse(name)
    except ValueError as error:
        raise InvalidUse(str(error), name) from None


def duration(name: str, value: object) -> str:
    """A length of time as a text with a unit; empty stands for the default."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise InvalidUse(f"{name} must be a text with a unit, like '{value}s' or '30m', not the number {value!r}")
    if not isinstance(value, str):
        raise _wrong(name, "a text with a unit, like '30m'", value)
    if value:
        try:
            _read_duration(value)
        except ValueError as error:
            raise InvalidUse(f"{name}: {error}") from None
    return value


@lru_cache(maxsize=256)
def _read_duration(value: str) -> None:
    from aenv.schema.duration import parse

    parse(value)


def seconds(name: str, value: object) -> float:
    """A finite number of seconds above 0."""
    if type(value) not in (int, float) and (
        isinstance(value, str | bytes | bool) or not isinstance(value, SupportsFloat)
    ):
        raise _wrong(name, "a number of seconds", value)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise _wrong(name, "a number of seconds", value) from None
    if not (math.isfinite(number) and number > 0):
        raise InvalidUse(f"{name} must be a finite number of seconds above 0, not {_shown(value)}")
    return number


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """A whole number in a range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _wrong(name, "an int", value) from None
    if isinstance(value, bool):
        raise _wrong(name, "an int", value)
    if number < low or (high is not None and number > high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidUse(f"{name} must be {limits}, not {_shown(number)}")
    return number


def flag(name: str, value: object) -> bool:
    """True or False; 1 and 0 will do."""
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise _wrong(name, "True or False", value)


def texts(name: str, value: Any) -> list[str]:
    """Several texts; one alone is most likely a mistake."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(type(value), "__iter__"):
        raise _wrong(name, "a list of str", value)
    found = list(value)
    for number, item in enumerate(found):
        if not isinstance(item, str):
            raise _wrong(f"{name}[{number}]", "a str", item)
        if "\0" in item:
            raise InvalidUse(f"{name}[{number}] has a NUL character in it")
    return found


def network(value: Any) -> str | list[str] | None:
    """One of the words for a network, or hosts."""
    if value is None:
        return None
    from aenv.isolation.network.policy import Network

    found = value if isinstance(value, str) else texts("network", value)
    try:
        Network.parse(found)
    except ValueError as error:
        raise InvalidUse(f"network: {error}") from None
    return found


def variables(name: str, value: Any) -> dict[str, str]:
    """Variables as an instance takes them. One that is None is as good as not given."""
    if value is None:
        return {}
    found: dict[str, str] = {}
    for key, item in _items(name, value):
        if not key or "=" in key or "\0" in key:
            raise InvalidUse(f"{name}: {_shown(key)} cannot be the name of a variable")
        if isinstance(item, _CONTAINERS):
            raise _wrong(f"{name}[{key!r}]", "a str", item)
        if item is not None:
            found[key] = str(item)
            if "\0" in found[key]:
                raise InvalidUse(f"{name}[{key!r}] has a NUL character in it")
    return found


def labels(name: str, value: Any) -> dict[str, str]:
    """Texts by their names."""
    found = {}
    for key, item in _items(name, {} if value is None else value):
        if not isinstance(item, str):
            raise _wrong(f"{name}[{key!r}]", "a str", item)
        found[key] = item
    return found


def mounts(name: str, value: Any) -> list[dict[str, Any]] | None:
    """A list of dicts; what is in them is for the platform to check."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(item, Mapping) for item in value):
        raise _wrong(name, "a list of dicts", value)
    return [dict(item) for item in value]


def call_arguments(value: Any, name: str = "arguments") -> dict[str, Any]:
    """What a tool or a function is called with."""
    if value is None or isinstance(value, dict):
        return value or {}
    return dict(_items(name, value))


def command(value: Any) -> str | list[str]:
    """A line for a shell, or a program and its arguments."""
    found = value if isinstance(value, str) else texts("command", value)
    if not found:
        raise InvalidUse("command is empty")
    if "\0" in found:
        raise InvalidUse("command has a NUL character in it")
    return found


def content(value: Any) -> bytes | str | Path:
    """What is uploaded."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, bytes | str | Path):
        return value
    raise _wrong("data", "bytes, a str or a Path", value)


def standard_input(value: object) -> str:
    """What a command reads; any characters will do."""
    if not isinstance(value, str):
        raise _wrong("stdin", "a str", value)
    return value


def _items(name: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        raise _wrong(name, "a dict", value)
    for key in value:
        if not isinstance(key, str):
            raise InvalidUse(f"{name} has the key {_shown(key)}, which is not a str but {_kind(key)}")
    return list(value.items())


def _wrong(name: str, wanted: str, value: object) -> InvalidUse:
    return InvalidUse(f"{name} must be {wanted}, not {_kind(value)}: {_shown(value)}")


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _shown(value: object) -> str:
    try:
        said = repr(value)
    except Exception:
        said = "a value that cannot be shown"
    return said if len(said) <= 80 else f"{said[:77]}..."
