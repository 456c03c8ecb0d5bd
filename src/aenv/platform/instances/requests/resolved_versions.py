"""Versions that hubs have resolved, on disk: environments that are cached start while their hub is down."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv.project.fetch import cache
from aenv.schema.instances import HubAccess
from aenv.schema.ref import EnvRef, VersionRange, is_digest, is_prerelease, order


@dataclass(frozen=True, slots=True)
class Resolved:
    """A version that a hub has resolved a name to."""

    path: Path
    """Folder with its files."""
    digest: str = ""
    notices: tuple[str, ...] = ()
    """Notices for users of this version, such as that it is deprecated."""
    version: str = ""
    """Empty if a previous release wrote the record."""
    yanked: bool = False

    def satisfies(self, wanted: VersionRange) -> bool:
        """Return whether a range may resolve to this version."""
        return bool(self.version) and not self.yanked and wanted.low <= order(self.version) < wanted.high

    def is_meant_by(self, ref: EnvRef) -> bool:
        """Return whether an exact version, a digest or a range may resolve to this version."""
        return ref.want in (self.version, self.digest) if ref.range is None else self.satisfies(ref.range)


def newest(found: Iterable[Resolved], wanted: VersionRange) -> Resolved | None:
    """Return the newest of the versions that satisfy a range, releases before prereleases."""
    fitting = [each for each in found if each.satisfies(wanted)]
    return max(fitting, key=lambda each: (not is_prerelease(each.version), order(each.version)), default=None)


class ResolvedVersions:
    """Versions that names resolved to at the last answer of a hub, in the user's cache folder.

    Each is a file named by a hash of hub, token and name: the rights of one user say nothing about another.
    """

    def get(self, access: HubAccess, name: str) -> Resolved | None:
        """Return the version, if it is known and its files are cached."""
        return _cached(access, _read(self._file(access, name)))

    def all_of(self, access: HubAccess, env: str) -> Iterator[tuple[str, Resolved]]:
        """Yield names and cached versions of an environment that this hub resolved for this token."""
        source = _source(access)
        for file in (Path(access.cache) / "resolved").glob("*.json"):
            known = _read(file)
            if known.get("source") == source and str(known.get("name")).partition("@")[0] == env:
                found = _cached(access, known)
                if found is not None:
                    yield str(known["name"]), found

    def put(self, access: HubAccess, name: str, found: Resolved) -> None:
        """Record what a name stands for now. A cache that cannot be written is no error."""
        if not found.digest:
            return
        file = self._file(access, name)
        known = {"name": name, "source": _source(access), "digest": found.digest, "version": found.version}
        text = json.dumps(known | {"notices": found.notices, "yanked": found.yanked})
        temporary = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            if file.is_file() and file.read_text() == text:
                return
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_text(text)
            temporary.replace(file)
        except OSError:
            temporary.unlink(missing_ok=True)

    def drop(self, access: HubAccess, name: str) -> None:
        """Forget a name, after the hub has refused it."""
        self._file(access, name).unlink(missing_ok=True)

    @staticmethod
    def _file(access: HubAccess, name: str) -> Path:
        key = hashlib.sha256(f"{access.url}\n{access.token}\n{name}".encode()).hexdigest()[:32]
        return Path(access.cache) / "resolved" / f"{key}.json"


def _source(access: HubAccess) -> str:
    return hashlib.sha256(f"{access.url}\n{access.token}".encode()).hexdigest()[:32]


def _read(file: Path) -> dict[str, Any]:
    try:
        known = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _cached(access: HubAccess, known: dict[str, Any]) -> Resolved | None:
    try:
        digest, notices = str(known["digest"]), tuple(map(str, known["notices"]))
    except (KeyError, TypeError):
        return None
    folder = cache(Path(access.cache)).use(digest.replace(":", "-")) if is_digest(digest) else None
    if folder is None:
        return None
    return Resolved(folder, digest, notices, str(known.get("version", "")), bool(known.get("yanked")))
