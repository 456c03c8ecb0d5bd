"""Pack host files as a tar for a box: owned by root, without the names and ids of host users."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

from aenv.errors import UsageError


def add(archive: tarfile.TarFile, source: Path, name: str, *, mode: int | None = None) -> None:
    """Add one file, link or folder, without the folder's content."""
    if stat.S_ISSOCK(source.lstat().st_mode):
        return  # a tar cannot contain sockets
    member = archive.gettarinfo(str(source), name)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if mode is not None and not member.issym():
        member.mode = mode
    if member.islnk():  # store hard links as files: the first link may be left out
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
    """Add a folder with its content, except paths below it for which ``leave_out`` is true."""
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
    """Write a tar of a file or folder, under a name, to a file object."""
    if not source.exists():
        raise UsageError(f"there is nothing at {source}")
    with tarfile.open(fileobj=target, mode="w|") as archive:  # type: ignore[call-overload]
        if source.is_dir():
            add_tree(archive, source, name)
        else:
            add(archive, source, name)
