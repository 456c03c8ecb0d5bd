"""Keys that tell which requests one sandbox, or one preloaded parent, can serve."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from aenv.engines.base import SandboxSpec
from aenv.isolation.files import private_folder

FRESH_SECONDS = 0.05
"""Reuse a project's fingerprint for this many seconds, for requests that came before the scan: a batch of creates scans
the files once."""
BURST_SECONDS = 0.001
"""Reuse it for any request with the same files for this many seconds."""
_IGNORED = {"__pycache__", ".git", ".venv", "venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"}


class SandboxKeys:
    """Computes keys of specs. All keys change when a file of the project does."""

    def __init__(self) -> None:
        self._scanned: tuple[SandboxSpec | None, float, str] = (None, -1.0, "")
        self._described: tuple[SandboxSpec | None, str, str] = (None, "", "")
        """The last spec, its key and its family: one create needs them several times."""

    def exact(self, spec: SandboxSpec) -> str:
        """Return the key of sandboxes that are interchangeable."""
        return f"{self.fingerprint(spec)} {self._describe(spec)[1]}"

    def family(self, spec: SandboxSpec) -> str:
        """Return the key of sandboxes that differ in nothing but their variables."""
        return f"{self.fingerprint(spec)} family {self._describe(spec)[2]}"

    def _describe(self, spec: SandboxSpec) -> tuple[SandboxSpec | None, str, str]:
        if self._described[0] is not spec:
            family = spec.family
            self._described = spec, f"{sorted(spec.variables.items())!r} {family}", family
        return self._described

    def fingerprint(self, spec: SandboxSpec) -> str:
        """Return the fingerprint of the spec's project, from the last scan if that is recent enough."""
        scanned, at, found = self._scanned
        age = time.monotonic() - at
        if scanned is not None and (scanned is spec or _same_files(scanned, spec)):
            came_before = scanned is spec or spec.requested_at <= at
            if age < (FRESH_SECONDS if came_before else BURST_SECONDS):
                return found
        began = time.monotonic()
        found = fingerprint(spec.project, spec.files)
        self._scanned = spec, began, found
        return found


def _same_files(one: SandboxSpec, other: SandboxSpec) -> bool:
    return one.project == other.project and one.files == other.files


def fingerprint(project: Path, files: Iterable[str] | None = None) -> str:
    """Return a digest that changes when a file of the project does; only ``files`` of it count, if given."""
    seen = []
    withheld_folder = f"{project}/{private_folder.FOLDER}/"
    folders = [str(project)] if files is None else []
    for path in [] if files is None else [project / name for name in files]:
        if path.is_dir():
            folders.append(str(path))
        elif path.exists():
            seen.append(f"{path}\0{path.stat().st_mtime_ns}\0{path.stat().st_size}")
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name in _IGNORED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.endswith((".py", ".json", ".txt", ".toml")) or entry.path.startswith(withheld_folder):
                    about = entry.stat(follow_symlinks=False)
                    seen.append(f"{entry.path}\0{about.st_mtime_ns}\0{about.st_size}")
    return hashlib.sha256("\n".join(sorted(seen)).encode(errors="surrogateescape")).hexdigest()
