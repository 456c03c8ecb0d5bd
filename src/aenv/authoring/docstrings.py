"""Parse a docstring into a description of the function and descriptions of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from dataclasses import dataclass, field

_HEADER = re.compile(
    r"^(args|arguments|parameters|params|returns?|raises|yields|examples?|notes?|attributes|see also)\s*:\s*$",
    re.IGNORECASE,
)
_ARGUMENT_HEADERS = {"args", "arguments", "parameters", "params"}
_ENTRY = re.compile(r"^\s*\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")
_FIELD = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)$")


@dataclass(slots=True)
class Doc:
    """A parsed docstring."""

    description: str | None = None
    """The docstring without the descriptions of the parameters."""
    parameters: dict[str, str] = field(default_factory=dict)


def parse(docstring: str | None, names: Collection[str]) -> Doc:
    """Parse Google style (``Args:``) and Sphinx style (``:param x:``).

    ``names`` are the names of the parameters, so that a line of prose with a colon is not taken for one.
    """
    if not docstring:
        return Doc()
    kept: list[str] = []
    found: dict[str, list[str]] = {}
    in_arguments = False
    current: str | None = None
    for line in inspect.cleandoc(docstring).splitlines():
        header = _HEADER.match(line)
        if header:
            in_arguments = header[1].lower() in _ARGUMENT_HEADERS
            current = None
            if not in_arguments:
                kept.append(line)
            continue
        entry = (_ENTRY if in_arguments else _FIELD).match(line)
        if entry and entry["name"] in names:
            current = entry["name"]
            found[current] = [entry["text"].strip()]
        elif current is not None and line.strip() and (in_arguments or line[:1].isspace()):
            found[current].append(line.strip())
        elif in_arguments and line.strip():
            kept.append(line)
        elif not in_arguments:
            current = None
            kept.append(line)
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return Doc(description or None, {name: " ".join(filter(None, text)) for name, text in found.items()})
