"""Decide whether this interpreter has a package already, with its extras, in a version that will do."""

from __future__ import annotations

import importlib.metadata
import json
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from aenv.engines.requirement_lines import Line
from aenv.schema.requirements import OWN


def is_satisfied(line: Line) -> bool:
    """Return whether nothing has to be installed for this line."""
    if not line.applies:
        return True
    if line.requirement is None:
        return any(_came_from(found, line.url) for found in importlib.metadata.distributions())
    return _has(line.requirement, line.url, set())


def _has(wanted: Requirement, url: str, seen: set[str]) -> bool:
    if canonicalize_name(wanted.name) == OWN:
        return True  # the sandbox has the package of this process
    try:
        found = importlib.metadata.distribution(wanted.name)
        if not wanted.specifier.contains(found.version, prereleases=True):
            return False
    except (importlib.metadata.PackageNotFoundError, InvalidVersion):
        return False
    if url and not _came_from(found, url):
        return False
    return all(_has_extra(found, extra, seen) for extra in wanted.extras)


def _has_extra(found: importlib.metadata.Distribution, extra: str, seen: set[str]) -> bool:
    """Return whether the packages of an extra are there. Extras may refer to each other in a circle."""
    key = f"{canonicalize_name(found.metadata['Name'])}[{canonicalize_name(extra)}]"
    if key in seen:
        return True
    seen.add(key)
    for text in found.requires or ():
        try:
            needed = Requirement(text)
        except InvalidRequirement:
            return False
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            continue  # needed without the extra, too, so installed with the package itself
        if needed.marker.evaluate({"extra": extra}) and not _has(needed, needed.url or "", seen):
            return False
    return True


def _came_from(found: importlib.metadata.Distribution, url: str) -> bool:
    """Return whether the package was installed from this URL, as its direct_url.json tells (PEP 610)."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    place = str(origin.get("url") or "")
    if "vcs_info" not in origin:
        return bool(place) and place.rstrip("/") == url.partition("#")[0].rstrip("/")
    address, _, revision = url.partition("#")[0].rpartition("@")
    if "/" in revision or not address:
        address, revision = url.partition("#")[0], ""
    bare = address.partition("+")[2] or address
    known = {str(origin["vcs_info"].get(key)) for key in ("requested_revision", "commit_id")}
    same = urlsplit(place)._replace(fragment="") == urlsplit(bare)._replace(fragment="")
    return same and (not revision or revision in known)
