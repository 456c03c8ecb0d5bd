"""The requirements of packages that are in a folder: names and versions, and nothing else.

A wheel may require a path, a URL or a repository. An installer that follows it asks hosts that no rule allows, and
builds what it finds there, outside of any sandbox. Only requirements.txt may name a place, where it is checked.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name

from aenv.engines.requirement_lines import redacted
from aenv.errors import LoadError

Packages = dict[NormalizedName, importlib.metadata.Distribution]
_HINT = "Add it to requirements.txt, or use a version of the package that requires it by its name"


def is_direct(line: str) -> bool:
    """Return whether a line of requirements names the place of a wheel."""
    try:
        return _parsed(line).url is not None
    except InvalidRequirement:
        return True


def missing_requirements(folder: Path, lines: Iterable[str]) -> list[str]:
    """Return what the packages in a folder require and what is not there, with the extras that ``lines`` ask for.

    Raises:
        LoadError: a package requires a path, a URL or a repository.
    """
    there = {canonicalize_name(each.metadata["Name"]): each for each in distributions(folder)}
    extras: dict[str, set[str]] = {}
    for line in lines:
        _note_extras(extras, line)
    found: dict[str, None] = {}
    before = -1
    while before != len(found):  # the extras of one package may ask for those of another
        before = len(found)
        for name, package in there.items():
            for needed in _requirements(package, extras.get(name, set()), there):
                _note_extras(extras, str(needed))
                found[str(needed)] = None
    return [text for text in found if not _is_there(there, text)]


def distributions(folder: Path) -> Iterator[importlib.metadata.Distribution]:
    """Return the packages in a folder."""
    return iter(importlib.metadata.distributions(path=[str(folder)]))


def _parsed(line: str) -> Requirement:
    return Requirement(line.partition(" --hash")[0])


def _note_extras(extras: dict[str, set[str]], line: str) -> None:
    try:
        wanted = _parsed(line)
    except InvalidRequirement:  # a place without a name
        return
    extras.setdefault(canonicalize_name(wanted.name), set()).update(wanted.extras)


def _requirements(package: importlib.metadata.Distribution, extras: set[str], there: Packages) -> Iterator[Requirement]:
    for text in package.requires or ():
        name = package.metadata["Name"]
        try:
            needed = Requirement(text)
        except InvalidRequirement:
            raise LoadError(f"requirements.txt: {name} has an invalid requirement: {redacted(text)[:200]!r}") from None
        if needed.marker is not None and not any(needed.marker.evaluate({"extra": each}) for each in ("", *extras)):
            continue
        if needed.url is not None:
            if canonicalize_name(needed.name) in there:
                continue
            problem = f"{name} requires '{redacted(text)[:200]}', and only requirements.txt may name a path or URL"
            raise LoadError(f"requirements.txt: {name} cannot be installed: {problem}", {"hint": _HINT})
        needed.marker = None
        yield needed


def _is_there(there: Packages, text: str) -> bool:
    needed = Requirement(text)
    found = there.get(canonicalize_name(needed.name))
    return found is not None and needed.specifier.contains(found.version, prereleases=True)
