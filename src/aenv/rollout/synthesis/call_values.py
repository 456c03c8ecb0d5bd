"""Values for arguments of tool calls: from examples, from earlier results, or made for a JSON schema."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aenv.schema.tasks import TaskStep

LONGEST_TEXT = 80
_KEPT = 200
_NOUNS = (
    "budget", "invoice", "notes", "report", "summary", "plan", "draft", "agenda", "backup", "results", "metrics",
    "letter", "orders", "review", "schedule", "survey", "catalog", "contract", "diary", "ledger", "manual", "outline",
    "policy", "recipe", "roster", "sketch", "journal", "memo", "record", "archive",
)  # fmt: skip
_ADJECTIVES = ("annual", "final", "first", "green", "internal", "late", "new", "open", "quick", "shared", "spare")
_PHRASES = (
    "Remember to water the plants.", "The meeting starts at nine.", "All tests have passed.", "Please call back today.",
    "Shipping takes three days.", "Lunch is at noon.", "The key is under the mat.", "Version two is ready.",
)  # fmt: skip

_DURATIONS = frozenset(("second", "sec", "minute", "wait", "delay", "duration", "pause", "sleep", "timeout"))
"""Words in the names of arguments that say how long a tool takes."""


class Values:
    """Values that were seen in an environment, by the names that they had."""

    def __init__(self, examples: Sequence[TaskStep] = ()) -> None:
        self.examples: dict[str, list[dict[str, Any]]] = {}
        self._named: dict[str, list[Any]] = {}
        self._all: list[Any] = []
        for step in examples:
            self.add_example(step)

    def add_example(self, step: TaskStep) -> None:
        """Remember the arguments of a call that is known to make sense."""
        known = self.examples.setdefault(step.tool, [])
        if step.arguments not in known:
            known.append(step.arguments)

    def add(self, value: Any, name: str = "") -> None:
        """Remember the texts and whole numbers in a result."""
        for key, leaf in [*leaves(value, name), *_entries(value)]:
            if isinstance(leaf, bool) or not isinstance(leaf, str | int) or not _usable(leaf):
                continue
            for known in (self._named.setdefault(key, []), self._all):
                if leaf not in known and len(known) < _KEPT:
                    known.append(leaf)

    def copy(self) -> Values:
        """Return a copy that can grow by itself."""
        made = Values()
        made.examples = {tool: list(calls) for tool, calls in self.examples.items()}
        made._named = {name: list(values) for name, values in self._named.items()}
        made._all = list(self._all)
        return made

    def arguments(
        self, tool: str, schema: Mapping[str, Any], rng: random.Random, optional: float = 0.3
    ) -> dict[str, Any]:
        """Return arguments that fit the schema of a tool; each optional one is given with that probability."""
        examples = self.examples.get(tool)
        if examples and rng.random() < 0.6:
            return dict(rng.choice(examples))
        required = schema.get("required") or ()
        shown = {name for call in examples or () for name in call}
        made: dict[str, Any] = {}
        for name, described in (schema.get("properties") or {}).items():
            if examples and name not in required and name not in shown:
                continue  # the examples do without it
            if name not in required and rng.random() >= optional:
                continue
            known = [call[name] for call in examples or () if name in call]
            made[name] = rng.choice(known) if known and rng.random() < 0.7 else self._value(name, described, rng)
        return made

    def _value(self, name: str, schema: Mapping[str, Any], rng: random.Random) -> Any:
        options = [each for each in schema.get("anyOf") or schema.get("oneOf") or () if each.get("type") != "null"]
        if options:
            return self._value(name, rng.choice(options), rng)
        if "const" in schema:
            return schema["const"]
        for listed in ("enum", "examples"):
            if schema.get(listed):
                return rng.choice(schema[listed])
        kind = schema.get("type")
        if kind == "boolean":
            return rng.random() < 0.5
        if kind in ("integer", "number"):
            return self._number(name, schema, kind, rng)
        if kind == "array":
            return [self._value(name, schema.get("items") or {}, rng) for _ in range(rng.randint(1, 2))]
        if kind == "object":
            return self._object(schema, rng)
        return self._string(name, schema, rng)

    def _object(self, schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = schema.get("required") or properties
        return {key: self._value(key, properties.get(key) or {}, rng) for key in required}

    def _number(self, name: str, schema: Mapping[str, Any], kind: str, rng: random.Random) -> Any:
        seen = [value for value in self._like(name) if isinstance(value, int) and not _words(name) & _DURATIONS]
        if seen and rng.random() < 0.8:
            return rng.choice(seen)
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 20))
        if _words(name) & _DURATIONS:  # a tool that waits for long makes the survey take hours
            return int(low) + 1 if kind == "integer" else low + min(0.1, (high - low) / 2)
        whole = rng.randint(int(low) + 1, max(int(low) + 1, int(min(high, low + 20)) - 1))
        return whole if kind == "integer" else float(whole)

    def _string(self, name: str, schema: Mapping[str, Any], rng: random.Random) -> str:
        like = [value for value in self._like(name) if isinstance(value, str)]
        texts = [value for value in self._all if isinstance(value, str) and " " not in value]
        chance = rng.random()
        made = _made_up(name, rng)
        if like and chance < 0.45:
            made = rng.choice(like)
        elif texts and chance < 0.7 and not _is_prose(name):
            made = rng.choice(texts)
        return made[: schema.get("maxLength") or None]

    def _like(self, name: str) -> list[Any]:
        """Return the values whose name shares a word with ``name``."""
        words = _words(name)
        return [value for key, values in self._named.items() if words & _words(key) for value in values]


def bad_arguments(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return arguments that a tool with this schema should refuse; None if every argument fits it."""
    if schema.get("required"):
        return {}
    for name, described in (schema.get("properties") or {}).items():
        if described.get("type") in ("integer", "number", "boolean", "object", "array"):
            return {name: "not a valid value"}
        if described.get("type") == "string":
            return {name: {"not": "a text"}}
    return None


def fits(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Return whether the names of arguments, and the types of simple ones, fit the schema of a tool."""
    properties = schema.get("properties") or {}
    if any(name not in arguments for name in schema.get("required") or ()):
        return False
    if any(name not in properties for name in arguments) and schema.get("additionalProperties") is not True:
        return False
    return all(_has_type(value, properties.get(name) or {}) for name, value in arguments.items())


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the simple values in JSON data, each with the name that it has there."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, str(key))
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, name)
    elif value is not None:
        yield name, value


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of tables: objects inside of others whose values are all of one simple type."""
    if isinstance(value, dict):
        types = {type(item) for item in value.values()}
        if name and len(types) == 1 and types <= {str, int, float, bool}:
            yield from ((name, str(key)) for key in value)
        for key, item in value.items():
            yield from _entries(item, str(key))


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}  # fmt: skip


def _has_type(value: Any, schema: Mapping[str, Any]) -> bool:
    types = _TYPES.get(str(schema.get("type")))
    if types is None:
        return True
    if isinstance(value, bool) and bool not in types:
        return False
    return isinstance(value, types) and (not schema.get("enum") or value in schema["enum"])


def _usable(leaf: str | int) -> bool:
    return isinstance(leaf, int) or (0 < len(leaf) <= LONGEST_TEXT and leaf.isprintable() and leaf != "None")


def _words(name: str) -> set[str]:
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return {word.lower().rstrip("s0123456789") for word in re.split(r"[\W_]+", split) if word} - {"", "name", "id"}


def _is_prose(name: str) -> bool:
    return bool(_words(name) & {"content", "text", "message", "description", "comment", "body", "note", "reason"})


def _made_up(name: str, rng: random.Random) -> str:
    if _is_prose(name):
        return rng.choice(_PHRASES)
    word = f"{rng.choice(_ADJECTIVES)}_{rng.choice(_NOUNS)}"
    return f"{word}.txt" if _words(name) & {"file", "path", "filename"} else word
