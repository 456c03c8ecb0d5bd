"""Arguments that are not quite of the declared type: what is accepted anyway, and what a caller is told.

JSON Schema calls 1.0 an integer, so it is one everywhere. A number or a flag written as text is accepted by functions
and rewards, as in version 0.1, and by tools of a project that declares ``"argumentTypes": "lenient"``. Functions and
rewards of such a project get arguments that cannot be converted as they were sent. All of this runs only when strict
validation has failed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from pydantic_core import ErrorDetails, from_json, to_json

VARIABLE = "AENV_ARGUMENT_TYPES"
"""Carries ``argumentTypes`` of config.json into the instance."""

_NUMBERS = {"int_type": "an integer", "float_type": "a number", "bool_type": "true or false"}
_NAMES = ("missing", "extra_forbidden")
_WHOLE = ("int_type", "int_from_float")


def is_lenient() -> bool:
    """Return whether the project declares lenient argument types."""
    return os.environ.get(VARIABLE) == "lenient"


def with_whole_numbers(body: bytes | bytearray, errors: Iterable[ErrorDetails]) -> bytes | None:
    """Return the body with integers in place of floats like 1.0, where an integer is expected; None without any."""
    found = [e["loc"] for e in errors if e["type"] in _WHOLE and _is_whole(e["input"])]
    if not found:
        return None
    arguments = from_json(body)
    for place in found:
        _make_integer(arguments, place)
    return to_json(arguments)


def as_sent(body: bytes | bytearray, errors: Iterable[ErrorDetails]) -> dict[str, Any] | None:
    """Return the arguments unconverted, as version 0.1 passed them; None if names are wrong and not only types."""
    if any(e["type"] in _NAMES or not e["loc"] for e in errors):
        return None
    arguments = from_json(body)
    return arguments if isinstance(arguments, dict) else None


def advice(error: ErrorDetails) -> str | None:
    """Return what to send instead of a number or flag that was sent as text; None for any other error."""
    expected, given = _NUMBERS.get(error["type"]), error["input"]
    if expected is None or not isinstance(given, str):
        return None
    try:
        meant = from_json(given.strip().lower())
    except ValueError:
        meant = None
    said = f"expected {expected}, got the text {given[:80]!r}"
    fits = isinstance(meant, bool) if error["type"] == "bool_type" else type(meant) in (int, float)
    return f"{said}; send {given.strip().lower()} without quotes" if fits else said


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) <= 2**53


def _make_integer(arguments: Any, place: tuple[int | str, ...]) -> None:
    """Replace the number at ``place``, whose last parts may be the names of a union's members."""
    holder, key = None, None
    value = arguments
    for part in place:
        try:
            deeper = value[part]
        except (KeyError, IndexError, TypeError):
            break
        holder, key, value = value, part, deeper
    if holder is not None and _is_whole(value):
        holder[key] = int(value)
