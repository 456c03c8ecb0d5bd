"""Selects the local platform of this process: one per interpreter, version of aenv and set of packages.

A platform forks instances from its own interpreter. So a process may only use a platform that gives its instances the
same Python, packages and aenv as the process has itself.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from aenv._version import __version__
from aenv.errors import ConfigError

PACKAGES = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "AENV_ENGINE")
ISOLATION = "AENV_ISOLATION"
"""Variables that select the code that a platform's instances run, and its engine."""
DEFAULTS = {"AENV_ENGINE": "native"}
FORK = "AENV_FORK"
NO_FORK_MARK = "\0AENV_FORK=0"
"""Added to `Identity.variables` where instances may not be forked, so that other identities stay unchanged."""
_ON, _OFF = ("", "1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


@dataclass(frozen=True, slots=True)
class Identity:
    """Properties that all processes sharing a platform have in common."""

    prefix: str
    """``sys.prefix``, which each virtual environment has to itself."""
    python: str
    source: str
    """Folder of the aenv package."""
    version: str
    state: str
    """Digest of the package's files if they can be edited in place, else empty."""
    variables: str

    @classmethod
    def own(cls) -> Identity:
        """Return the identity of this process."""
        source = os.path.realpath(Path(__file__).parent.parent)
        return cls(
            prefix=os.path.realpath(sys.prefix),
            python=f"{sys.implementation.name}-{sys.version.split()[0]}",
            source=source,
            version=__version__,
            state=_state_of(source),
            variables="\0".join(os.environ.get(name, DEFAULTS.get(name, "")) for name in PACKAGES)
            + ("" if _may_fork() else NO_FORK_MARK)
            + _isolation_mark(),
        )

    @property
    def key(self) -> str:
        """Short name, used for a folder of sockets, whose paths must be short."""
        return hashlib.sha256("\n".join(asdict(self).values()).encode(errors="surrogateescape")).hexdigest()[:8]

    @property
    def engine(self) -> str:
        """Name of the engine that runs its instances."""
        values = self.variables.split("\0")
        return values[PACKAGES.index("AENV_ENGINE")] if len(values) >= len(PACKAGES) else ""

    def replaces(self, other: Identity) -> bool:
        """Return whether this is the same installation after an upgrade or an edit."""
        return self != other and all(
            getattr(self, name) == getattr(other, name) for name in ("prefix", "python", "source", "variables")
        )


def _may_fork() -> bool:
    """Return whether instances of this process may be forked from a preloaded parent.

    Raises:
        ConfigError: the variable is neither true nor false.
    """
    value = os.environ.get(FORK, "").strip().lower()
    if value not in (*_ON, *_OFF):
        raise ConfigError(f"{FORK}: invalid value '{value}'; expected 1 or 0")
    return value in _ON


def _isolation_mark() -> str:
    """Return what tells apart the platforms of another isolation level than the default.

    Raises:
        ConfigError: there is no such level.
    """
    value = os.environ.get(ISOLATION, "")
    if value not in ("", "namespaces", "confined", "auto"):
        raise ConfigError(f"{ISOLATION}: invalid value '{value}'; expected namespaces, confined or auto")
    return "" if value in ("", "namespaces") else f"\0{ISOLATION}={value}"


@cache
def _state_of(source: str) -> str:
    """Return a digest of the package's files. Installed files change only with the version, so they are not read."""
    if any(part in ("site-packages", "dist-packages") for part in Path(source).parts):
        return ""
    seen, folders = hashlib.sha256(), [source]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                    folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    about = entry.stat()
                    seen.update(f"{entry.path}\0{about.st_mtime_ns}\0{about.st_size}\n".encode())
    return seen.hexdigest()[:16]
