"""Find objects by entry point: how a lower package reaches what a higher one, or a plug-in, provides.

Entry points of aenv itself come first. No plug-in can take the place of one of those, and reading one distribution's
metadata is faster than reading that of all.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any

from aenv.errors import ConfigError

log = logging.getLogger("aenv.plugins")

ADAPTERS = "aenv.adapters"
BENCHMARKS = "aenv.benchmarks"
ENGINES = "aenv.engines"
ENGINE_SCHEMES = "aenv.engine_schemes"
"""Engines that are named by a URL, by its scheme."""
_DISTRIBUTION = "aenvironment"
_CHECKOUT = Path(__file__).parents[2] / "pyproject.toml"


def names(group: str, *, aliases: bool = True) -> list[str]:
    """Return the names that are registered in a group, sorted. Without aliases: the longest name of each object."""
    found = {
        entry.name: entry.value
        for source in (_checkout(), entry_points(), _own())
        for entry in source.select(group=group)
    }
    if not aliases:
        longest = {found[name]: name for name in sorted(found, key=len)}
        return sorted(longest.values())
    return sorted(found)


def has(group: str, name: str) -> bool:
    """Return whether a name is registered in a group."""
    return bool(_entries(group, name))


def load(group: str, name: str) -> Any:
    """Import and return the object that is registered under a name.

    Raises:
        ConfigError: there is none of that name; the message lists those that exist.
    """
    for entry in _entries(group, name):
        return entry.load()
    registered = ", ".join(names(group)) or "none"
    raise ConfigError(f"no plug-in '{name}' in group '{group}'; available: {registered}")


def _entries(group: str, name: str) -> EntryPoints:
    """Return the entry points of that name: aenv's own, those of other packages, those that the checkout has since."""
    found = _own().select(group=group, name=name) or entry_points(group=group, name=name)
    return found or _checkout().select(group=group, name=name)


@cache
def _checkout() -> EntryPoints:
    """Return the entry points of the checkout that this module is imported from, if it is."""
    return declared_in(_CHECKOUT) if _CHECKOUT.is_file() else EntryPoints()


@cache
def _own() -> EntryPoints:
    """Return the entry points of aenv itself, as installed; from pyproject.toml where the metadata is out of date.

    An editable install keeps the metadata of the day when it was made: it lacks entry points that were added later.
    """
    try:
        installed = distribution(_DISTRIBUTION).entry_points
    except PackageNotFoundError:
        installed = EntryPoints()
    if installed.select(group=ENGINES):
        return installed
    if not _CHECKOUT.is_file():
        return installed
    log.warning("the installed metadata of %s is out of date; run 'scripts/setup dev' again", _DISTRIBUTION)
    return declared_in(_CHECKOUT)


def declared_in(pyproject: Path) -> EntryPoints:
    """Return the entry points that a pyproject.toml declares."""
    import tomllib

    groups = tomllib.loads(pyproject.read_text())["project"]["entry-points"]
    return EntryPoints(
        EntryPoint(name, value, group) for group, entries in groups.items() for name, value in entries.items()
    )
