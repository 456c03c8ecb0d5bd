"""Replace secrets in events before they are written.

A secret is a value that the caller names, the value of a variable of this process or of the instance whose name says so
(``*_API_KEY``, ``*_TOKEN``, ``*_SECRET``, ``*_PASSWORD``), an ``Authorization`` header, a field named like an API key,
or a text that has the shape of one. Passwords that are part of a task are not secrets: an agent has to type them.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"
SHORTEST = 8
"""Shorter values are not replaced: they would be found in ordinary text."""

_DEEPEST = 3
"""Levels of JSON in JSON texts, as in the arguments of a call that is part of a message."""
_VARIABLE = re.compile(r"(?:API_?KEY|_TOKEN|_SECRET|_PASSWORD)$")
_FIELD = re.compile(r"(?:^|_)(?:authorization|api_?key)$")
_HINTS = (
    "authorization", "bearer ", "api_key", "api-key", "apikey", "sk-", "ghp_", "gho_", "ghs_", "github_pat_", "hf_",
    "akia", "xox", "aiza", "aenv_", '"variables":{"',
)  # fmt: skip
"""Lower-case texts, one of which every pattern below contains. Searching them is faster than the patterns."""
_SHAPES = (
    (re.compile(r"(?i)(authorization\W{1,6})(?:(?:bearer|basic|token)\s+)?[\w.~+/=-]{8,}"), rf"\1{REDACTED}"),
    (re.compile(r"(?i)\b(bearer\s+)(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}"), rf"\1{REDACTED}"),
    (re.compile(r"(?i)(api[-_]?key\W{1,6})(?=[\w.-]*\d)[\w.-]{16,}"), rf"\1{REDACTED}"),
    (re.compile(r"\bsk-(?=[\w-]*\d)[\w-]{16,}"), REDACTED),
    (re.compile(r"\bgh[oprsu]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bhf_[A-Za-z0-9]{20,}"), REDACTED),
    (re.compile(r"\baenv_[0-9a-f]{12}_[\w-]{40,}"), REDACTED),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{30,}"), REDACTED),
)


def secrets_of_process() -> list[str]:
    """Return the values of this process's variables that are secrets by their names."""
    return [value for name, value in os.environ.items() if _VARIABLE.search(name.upper()) and len(value) >= SHORTEST]


class Redactor:
    """Replaces secrets in events."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = [value for value in dict.fromkeys(values) if len(value) >= SHORTEST]
        known = sorted({spelling for value in self._values for spelling in _spellings(value)}, key=len, reverse=True)
        self._needles = [json.dumps(value, ensure_ascii=False)[1:-1] for value in known]
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def plus(self, values: Iterable[str]) -> Redactor:
        """Return a redactor that knows further values."""
        more = [value for value in values if value not in self._values]
        return Redactor([*self._values, *more]) if more else self

    def finds(self, line: str) -> bool:
        """Return whether an encoded event may contain a secret."""
        if any(needle in line for needle in self._needles):
            return True
        lower = line.lower()
        return any(hint in lower for hint in _HINTS)

    def redacted(self, value: Any) -> Any:
        """Return a JSON value without secrets."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {
                self._text(str(name)): REDACTED if _secret_field(name, each) else self.redacted(_variables(name, each))
                for name, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.redacted(each) for each in value]
        return value

    def _text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        lower = text.lower()
        if any(hint in lower for hint in _HINTS):
            for pattern, replacement in _SHAPES:
                text = pattern.sub(replacement, text)
        return text


def _spellings(value: str) -> set[str]:
    """Return a value as it is, and as JSON in text, URLs and basic authentication contain it."""
    data = value.encode(errors="surrogateescape")
    found = {value, quote(data, safe=""), quote_plus(data), b64encode(data).decode().rstrip("=")}
    level = {value}
    for _ in range(_DEEPEST):
        level = {json.dumps(each, ensure_ascii=ascii)[1:-1] for each in level for ascii in (True, False)}
        found |= level
    return found


def _variables(name: Any, value: Any) -> Any:
    """Return variables of an instance without the values of those that are secrets by their names."""
    if name != "variables" or not isinstance(value, Mapping):
        return value
    return {key: REDACTED if _VARIABLE.search(str(key).upper()) else each for key, each in value.items()}


def _secret_field(name: Any, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and bool(_FIELD.search(str(name).lower().replace("-", "_")))
