"""Files of the host as a tar for a box: owned by root, with nothing of the host's users."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

from aenv.errors import UsageError


def add(archive: tarfile.TarFile, source: Path, name: str, *, mode: int | None = None) -> None:
    """One file, link or folder, without what is in it."""
    if stat.S_ISSOCK(source.lstat().st_mode):
        return  # a tar has none
    member = archive.gettarinfo(str(source), name)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if mode is not None and not member.issym():
        member.mode = mode
    if member.islnk():  # the one that it is linked to may be left out
        member.type, member.size = tarfile.REGTYPE, source.stat().st_size
    if member.isreg():
        with source.open("rb") as file:
            archive.addfile(member, file)
    else:
        archive.addfile(member)


def add_tree(
    archive: tarfile.TarFile,
    source: Path,
    name: str,
    *,
    leave_out: Callable[[str], bool] = lambda name: False,
    mode: int | None = None,
) -> None:
    """A folder with all that is in it. ``leave_out`` is asked with paths below it."""
    add(archive, source, name)
    pending = [""]
    while pending:
        folder = pending.pop()
        for entry in sorted(os.scandir(source / folder), key=lambda each: each.name):
            below = f"{folder}/{entry.name}" if folder else entry.name
            if leave_out(below):
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            add(archive, Path(entry.path), f"{name}/{below}", mode=None if is_folder else mode)
            if is_folder:
                pending.append(below)


def pack(target: object, source: Path, name: str) -> None:
    """A file or a folder under a name, into something that can be written to."""
    if not source.exists():
        raise UsageError(f"there is nothing at {source}")
    with tarfile.open(fileobj=target, mode="w|") as archive:  # type: ignore[call-overload]
        if source.is_dir():
            add_tree(archive, source, name)
        else:
            add(archive, source, name)
