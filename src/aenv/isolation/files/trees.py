"""Remove or measure folders filled by untrusted programs, however deep they are.

`shutil.rmtree` recurses and keeps a file open for every level. Folders that are nested deeply enough make it raise
RecursionError, and their content stays on the disk. Paths are limited as well: deeper files cannot be opened by path.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

LONG_PATH = 2000
"""Bytes of a path, about half of PATH_MAX."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str | Path, seconds: float | None = None) -> None:
    """Remove a folder and everything in it as far as possible, without raising.

    No symbolic link is followed, even if one replaces a folder meanwhile. After ``seconds`` the rest is left, so that a
    process that still writes to the folder cannot block the caller.
    """
    until = None if seconds is None else time.monotonic() + seconds
    with contextlib.suppress(OSError):
        root = _open_folder(str(path))
        try:
            spare = (f".removing-{os.getpid()}-{number}" for number in count())
            while sum(_remove(name, root, spare) for name in _list(root, until)):
                pass
        finally:
            os.close(root)
        os.rmdir(path)


def size_of_tree(path: str) -> int:
    """Return the bytes that a folder and everything in it occupy on disk; holes of sparse files do not count."""
    total, folders = 0, list[tuple[_OpenFolder | None, str]]([(None, path)])
    while folders:
        start, folder = folders.pop()
        try:
            if len(os.fsencode(folder)) > LONG_PATH:
                start = _OpenFolder(folder)
                folder = f"/proc/self/fd/{start.descriptor}"
            with os.scandir(folder) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((start, entry.path))
        except OSError:
            continue  # removed meanwhile
    return total


class _OpenFolder:
    """Folder kept open as the start of paths, until the last of them has been visited."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, _FOLDER)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            os.close(self.descriptor)


def _list(folder: int, until: float | None = None) -> Iterator[str]:
    """Yield the names in an open folder, until the deadline."""
    for name in os.listdir(folder):
        if until is not None and time.monotonic() > until:
            return
        yield name


def _remove(name: str, root: int, spare: Iterator[str]) -> bool:
    """Remove a file, or a folder after moving its subfolders up to the root; return whether anything changed."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=root)
        return True
    done = False
    with contextlib.suppress(OSError):
        folder = _open_folder(name, root)
        try:
            for inside in _list(folder):
                done |= _move_up(inside, folder, root, spare)
        finally:
            os.close(folder)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=root)
        done = True
    return done


def _move_up(name: str, folder: int, root: int, spare: Iterator[str]) -> bool:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
        return True
    with contextlib.suppress(OSError):
        os.close(_open_folder(name, folder))  # makes it writable, which moving a folder requires
        os.rename(name, next(spare), src_dir_fd=folder, dst_dir_fd=root)
        return True
    return False


def _open_folder(name: str, folder: int | None = None) -> int:
    """Open a folder, first granting its owner the permissions to enter and change it."""
    try:
        opened = os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:
        handle = os.open(name, _FOLDER | os.O_PATH, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        finally:
            os.close(handle)
        opened = os.open(name, _FOLDER, dir_fd=folder)
    if os.fstat(opened).st_mode & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.fchmod(opened, 0o700)
    return opened
