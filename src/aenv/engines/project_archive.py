"""The files of a project that an instance gets, as members of an archive."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from aenv.engines.base import SandboxSpec
from aenv.isolation.files import private_folder

WITHHELD = "/.withheld"
PRIVATE = f"{WITHHELD}/{private_folder.FOLDER}"
"""Private files in a container: the runtime reads and removes them before it loads any code."""
LEFT_OUT = frozenset(
    ("__pycache__", ".git", ".venv", "venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache")
)


def project_members(spec: SandboxSpec) -> Iterator[Path]:
    """Iterate over the files and folders of a project that an instance needs, sorted."""
    if spec.files is None:
        yield from _below(spec.project)
        return
    for name in sorted(spec.files):
        path = spec.project / name
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)


def _below(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name in LEFT_OUT:
            continue
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path))


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Drop owners, and what is neither file, folder nor link, such as a socket."""
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def has_private(spec: SandboxSpec) -> bool:
    """Return True if the environment has private files."""
    listed = spec.files is None or private_folder.FOLDER in spec.files
    return listed and private_folder.has_folder(str(spec.project))
