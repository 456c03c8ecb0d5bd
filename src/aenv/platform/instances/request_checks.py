"""Checks of what a create asks for, made before anything is counted, started or written down."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import to_json

from aenv.errors import TooLarge, UsageError
from aenv.schema.instances import EnvInstanceCreateRequest

MAX_LABELS = 64 * 1024
"""Bytes of the labels of one instance, as JSON."""
MAX_LABELS_IN_ALL = 16 * 1024 * 1024
"""The same for all instances of one create: each of them is answered, listed and stored with its own copy."""


def check(wish: EnvInstanceCreateRequest) -> None:
    """Refuse a create that could never work.

    Raises:
        UsageError: a name is empty or has a character in it that it cannot have.
        TooLarge: the labels are.
    """
    check_variables(wish.environment_variables)
    check_labels(wish.labels, wish.count or 1)
    for number, argument in enumerate(wish.arguments or ()):
        check_text(f"arguments.{number}", argument)
    texts = {
        "envName": wish.envName, "datasource": wish.datasource, "ttl": wish.ttl, "owner": wish.owner,
        "request_id": wish.request_id, "source": wish.source, "lease": wish.lease,
    }  # fmt: skip
    for field, text in texts.items():
        check_text(field, text or "")


def check_variables(variables: Mapping[str, str] | None) -> None:
    """Raise UsageError for a variable that no process can have."""
    for name, value in (variables or {}).items():
        _check_name("environment_variables", name)
        check_text(f"environment_variables.{name}", value)


def check_labels(labels: Mapping[str, str] | None, count: int = 1) -> None:
    """Raise UsageError for a name that no filter can have, and TooLarge for labels that are."""
    if not labels:
        return
    for name, value in labels.items():
        _check_name("labels", name)
        check_text(f"labels.{name}", value)
    size = len(to_json(labels))
    if size > MAX_LABELS:
        raise TooLarge(f"labels: {size} bytes; an instance has at most {MAX_LABELS}")
    if size * count > MAX_LABELS_IN_ALL:
        raise TooLarge(f"labels: {count} instances with {size} bytes of labels each are too many for one request")


def check_text(field: str, text: str) -> None:
    """Raise UsageError for what no variable, argument or path can hold."""
    if "\0" in text:
        raise UsageError(f"{_shown(field)}: contains a NUL character")
    if not text.isascii() and _has(text, range(0xD800, 0xE000)):
        raise UsageError(f"{_shown(field)}: contains a lone surrogate, which is no character")


def _check_name(field: str, name: str) -> None:
    if not name:
        raise UsageError(f"{field}: a name is empty")
    if "=" in name:
        raise UsageError(f"{field}: invalid name '{_shown(name)}'; a name cannot contain '='")
    check_text(f"{field}: the name '{_shown(name)}'", name)


def _has(text: str, codes: range) -> bool:
    return any(ord(character) in codes for character in text)


def _shown(text: str) -> str:
    """A name as an error message can hold it."""
    return text.encode("ascii", "backslashreplace").decode().replace("\0", "\\0")[:100]
