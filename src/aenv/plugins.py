"""Name to object, by entry point: how a lower room finds what a higher room, or a stranger, provides."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from aenv.errors import ConfigError

ADAPTERS = "aenv.adapters"
ENGINES = "aenv.engines"


def names(group: str) -> list[str]:
    """What is registered in a group."""
    return sorted(entry_points(group=group).names)


def load(group: str, name: str) -> Any:
    """The object registered under that name."""
    found = entry_points(group=group)
    for entry in found:
        if entry.name == name:
            return entry.load()
    known = ", ".join(sorted(found.names)) or "none"
    raise ConfigError(f"no plug-in '{name}' in group '{group}'; there are: {known}")
