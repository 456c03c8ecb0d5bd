"""Checks of a create request, made before anything is counted, started or stored."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import to_json

from aenv.errors import TooLarge, UsageError
from aenv.schema.instances import EnvInstanceCreateRequest

MAX_LABELS = 64 * 1024
"""Bytes of the labels of one instance, as JSON."""
MAX_LABELS_PER_REQUEST = 16 * 1024 * 1024
"""Bytes of the labels of all instances of one request: each is answered, listed and stored with its own copy."""


def check(request: EnvInstanceCreateRequest) -> None:
    """Refuse a create request that could never succeed.

    Raises:
        UsageError: a name is empty, or a text contains an invalid character.
        TooLarge: the labels are too large.
    """
    check_variables(request.environment_variables)
    check_labels(request.labels, request.count or 1)
    for number, argument in enumerate(request.arguments or ()):
        check_text(f"arguments.{number}", argument)
    texts = {
        "envName": request.envName, "datasource": request.datasource, "ttl": request.ttl, "owner": request.owner,
        "request_id": request.request_id, "source": request.source, "lease": request.lease,
    }  # fmt: skip
    for field, text in texts.items():
        check_text(field, text or "")


def check_variables(variables: Mapping[str, str] | None) -> None:
    """Raise UsageError for an invalid environment variable."""
    for name, value in (variables or {}).items():
        _check_name("environment_variables", name)
        check_text(f"environment_variables.{name}", value)


def check_labels(labels: Mapping[str, str] | None, count: int = 1) -> None:
    """Raise UsageError for an invalid label name, and TooLarge for labels that are too large."""
    if not labels:
        return
    for name, value in labels.items():
        _check_name("labels", name)
        check_text(f"labels.{name}", value)
    size = len(to_json(labels))
    if size > MAX_LABELS:
        raise TooLarge(f"labels: {size} bytes; an instance has at most {MAX_LABELS}")
    if size * count > MAX_LABELS_PER_REQUEST:
        raise TooLarge(f"labels: {count} instances with {size} bytes of labels each are too many for one request")


def check_text(field: str, text: str) -> None:
    """Raise UsageError for a text that no variable, argument or path can hold."""
    if "\0" in text:
        raise UsageError(f"{_printable(field)}: contains a NUL character")
    if not text.isascii() and _contains(text, range(0xD800, 0xE000)):
        raise UsageError(f"{_printable(field)}: contains a lone surrogate, which is not a character")


def _check_name(field: str, name: str) -> None:
    if not name:
        raise UsageError(f"{field}: a name is empty")
    if "=" in name:
        raise UsageError(f"{field}: invalid name '{_printable(name)}'; a name cannot contain '='")
    check_text(f"{field}: the name '{_printable(name)}'", name)


def _contains(text: str, codes: range) -> bool:
    return any(ord(character) in codes for character in text)


def _printable(text: str) -> str:
    """Return a name in a form that fits into an error message."""
    return text.encode("ascii", "backslashreplace").decode().replace("\0", "\\0")[:100]
