"""Find the project that a path belongs to.

People point at a project, at its ``src/`` or at one file in it; its config.json is there or one level up.
Further up is somebody else's.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from aenv.errors import UsageError
from aenv.project import manifest


@dataclass(frozen=True)
class Located:
    """``code`` is what to load; without a config.json there is no ``loaded``, and ``root`` is a guess."""

    root: Path
    code: Path
    loaded: manifest.Loaded | None

    @property
    def variables(self) -> dict[str, str]:
        """What the environment's process gets: its own variables, and its name and version."""
        if self.loaded is None:
            return {}
        own = self.loaded.manifest
        return {**own.variables(), "envNAME": own.name, "envversion": own.version}


def locate(path: Path) -> Located:
    """The project at, or right above, ``path``.

    Raises:
        UsageError: there is nothing at that path.
        ConfigError: its config.json has problems.
    """
    path = path.absolute()
    try:
        folder = path if stat.S_ISDIR(os.stat(path).st_mode) else path.parent
    except OSError:
        raise UsageError(f"there is nothing at {path}") from None
    for root in (folder, folder.parent):
        try:
            about = os.stat(f"{root}/{manifest.FILE_NAME}")
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode):
            return Located(root, path, _loaded(root, about.st_mtime_ns, about.st_size, about.st_ino))
    return Located(folder, path, None)


@lru_cache(maxsize=64)
def _loaded(root: Path, *stamp: int) -> manifest.Loaded:
    """Read once for as long as the file stays as it is: a platform looks at it for every instance."""
    return manifest.load(root)
