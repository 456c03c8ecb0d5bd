"""Find the project that a path belongs to.

A user may name a project, its ``src/`` or a file in it. Its config.json is there or one level up; a config.json further
up may belong to another project.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from aenv.errors import UsageError
from aenv.project import manifest
from aenv.tracing.logging import getLogger

log = getLogger("project")


@dataclass(frozen=True)
class Located:
    """A project: its root, the code to load, and its manifest.

    Without a config.json, ``loaded`` is None and ``root`` is a guess.
    """

    root: Path
    code: Path
    loaded: manifest.Loaded | None
    digest: str = ""
    """Digest of its bundle, if it comes from a hub."""
    notices: tuple[str, ...] = ()
    """Notices for users: that a version is deprecated, or that the config.json of a project here has unknown keys."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the instance: those of config.json, and its name and version."""
        if self.loaded is None:
            return {}
        own = self.loaded.manifest
        return {**own.variables(), "envNAME": own.name, "envversion": own.version}


def locate(path: Path) -> Located:
    """Return the project at ``path`` or one level above.

    Raises:
        UsageError: ``path`` does not exist.
        ConfigError: the project's config.json is invalid.
    """
    path = path.absolute()
    try:
        folder = path if stat.S_ISDIR(os.stat(path).st_mode) else path.parent
    except OSError:
        raise UsageError(f"no such file or folder: {path}") from None
    for root in (folder, folder.parent):
        try:
            about = os.stat(f"{root}/{manifest.FILE_NAME}")
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode):
            loaded = _loaded(root, about.st_mtime_ns, about.st_size, about.st_ino)
            notices = tuple(f"{loaded.manifest.name}: {warning}" for warning in loaded.warnings)
            return Located(root, path, loaded, notices=notices)
    return Located(folder, path, None)


@lru_cache(maxsize=64)
def _loaded(root: Path, *stamp: int) -> manifest.Loaded:
    """Return the manifest, cached until the file changes: a platform needs it for every instance."""
    found = manifest.load(root)
    for warning in found.warnings:
        log.warning("%s: %s", root, warning)
    return found
