"""Strict parsing of hand-written JSON, with errors that name the line and the column.

Stricter than ``json.loads``: a duplicate key would silently lose one value, and NaN or a number that overflows could
not be written back.
"""

from __future__ import annotations

import json
from typing import Any

from aenv.project import problems
from aenv.project.problems import Problem

_LONGEST_NUMBER = 1000


def decode(text: str, file: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ConfigError: with the line and the column.
    """
    duplicates: list[Problem] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            again = dict.fromkeys(key for key in keys if keys.count(key) > 1)
            duplicates.extend(Problem("", f"{key!r} is written twice in the same object; keep one") for key in again)
        return found

    def number(digits: str) -> float:
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"the number {digits[:40]} is too large")
        return value

    def integer(digits: str) -> int:
        if len(digits) > _LONGEST_NUMBER:
            raise ValueError(f"the number {digits[:20]}… has {len(digits)} digits")
        return int(digits)

    def constant(word: str) -> Any:
        raise ValueError(f"{word} is not JSON")

    try:
        data = json.loads(
            text, object_pairs_hook=unique, parse_float=number, parse_int=integer, parse_constant=constant
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise problems.config_error(file, [Problem("", f"{where}: not valid JSON: {_why(error)}")]) from None
    except RecursionError:
        raise problems.config_error(file, [Problem("", "is nested too deeply")]) from None
    except ValueError as error:
        raise problems.config_error(file, [Problem("", str(error))]) from None
    if not isinstance(data, dict):
        raise problems.config_error(file, [Problem("", "must be an object: write it in { }")])
    if duplicates:
        raise problems.config_error(file, duplicates)
    return data


def _why(error: json.JSONDecodeError) -> str:
    """Return Python's message, with advice for the most common mistakes."""
    why = error.msg[:1].lower() + error.msg[1:]
    before, at = error.doc[: error.pos].rstrip(), error.doc[error.pos :].lstrip()
    if not error.doc.strip():
        return "the file is empty"
    if before.endswith(",") and at[:1] in ("}", "]"):
        return f"{why}; remove the comma before {at[:1]!r}"
    if at.startswith(("//", "#", "/*")):
        return f"{why}; JSON does not allow comments"
    return why
