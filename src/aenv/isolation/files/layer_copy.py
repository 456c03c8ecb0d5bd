"""Copy what a sandbox has written into the empty layer of another one.

Both layers are given as descriptors of folders, and every path is resolved one name at a time and without following
links: the tree belongs to foreign code. Neither sandbox runs meanwhile. Contents are copied, so the cost is that of the
files that were written, not of those that the sandbox sees.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

MOST_ENTRIES = 100_000
MOST_LEVELS = 128
"""Limit of nested folders. Each takes two descriptors and some frames of the interpreter, which has a thousand."""
SKIPPED_AT_TOP = frozenset(("work",))
"""The overlay's own folder, which the kernel fills."""
_CHUNK = 1 << 24
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_ATTRIBUTES = ("user.",)


class TooManyFiles(OSError):
    """The sandbox has written more files than can be copied while it waits."""


def copy_layer(source: int, target: int) -> int:
    """Copy a layer; return the number of files and folders.

    Raises:
        TooManyFiles: it has more than `MOST_ENTRIES`, or `MOST_LEVELS`.
        OSError: a file could not be copied.
    """
    return _Copy().folder(source, target, skipped=SKIPPED_AT_TOP)


class _Copy:
    def __init__(self) -> None:
        self._count = self._level = 0
        self._links: dict[tuple[int, int], tuple[int, str]] = {}
        """Copies of files with several names: a descriptor of the folder, and the name there."""

    def folder(self, source: int, target: int, *, skipped: frozenset[str] = frozenset()) -> int:
        """Copy all entries of a folder."""
        self._level += 1
        if self._level > MOST_LEVELS:
            raise TooManyFiles(errno.EFBIG, f"it has written over {MOST_LEVELS} folders inside of each other")
        with os.scandir(source) as entries:
            names = [entry.name for entry in entries if entry.name not in skipped]
        for name in names:
            self._count += 1
            if self._count > MOST_ENTRIES:
                raise TooManyFiles(errno.EFBIG, f"it has written over {MOST_ENTRIES} files")
            self._entry(source, target, name)
        self._level -= 1
        return self._count

    def _entry(self, source: int, target: int, name: str) -> None:
        about = os.stat(name, dir_fd=source, follow_symlinks=False)
        kind = stat.S_IFMT(about.st_mode)
        if kind == stat.S_IFDIR:
            self._folder_entry(source, target, name, about)
        elif kind == stat.S_IFREG:
            self._file(source, target, name, about)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif kind == stat.S_IFIFO or (kind == stat.S_IFCHR and about.st_rdev == 0):  # 0: removed, for an overlay
            os.mknod(name, about.st_mode, 0, dir_fd=target)
        if kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            with contextlib.suppress(FileNotFoundError):
                os.utime(name, ns=(about.st_atime_ns, about.st_mtime_ns), dir_fd=target, follow_symlinks=False)

    def _folder_entry(self, source: int, target: int, name: str, about: os.stat_result) -> None:
        with contextlib.suppress(FileExistsError):  # such as /tmp, which every sandbox has
            os.mkdir(name, dir_fd=target)
        with _opened(name, _FOLDER, source) as theirs, _opened(name, _FOLDER, target) as ours:
            self.folder(theirs, ours)
            _copy_attributes(theirs, ours)
            os.fchmod(ours, stat.S_IMODE(about.st_mode))

    def _file(self, source: int, target: int, name: str, about: os.stat_result) -> None:
        if about.st_nlink > 1:
            known = self._links.get((about.st_dev, about.st_ino))
            if known is not None:
                os.link(known[1], name, src_dir_fd=known[0], dst_dir_fd=target, follow_symlinks=False)
                return
        create = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _opened(name, _READ, source) as theirs, _opened(name, create, target) as ours:
            _copy_contents(theirs, ours, about.st_size)
            _copy_attributes(theirs, ours)
            os.fchmod(ours, stat.S_IMODE(about.st_mode))
        if about.st_nlink > 1:
            self._links[about.st_dev, about.st_ino] = os.dup(target), name

    def __del__(self) -> None:
        for folder, _ in self._links.values():
            os.close(folder)


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: int) -> Iterator[int]:
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def _copy_contents(source: int, target: int, size: int) -> None:
    """Copy the data of a file, and leave its holes."""
    os.ftruncate(target, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        end = os.lseek(source, at, os.SEEK_HOLE)
        os.lseek(target, at, os.SEEK_SET)
        while at < end:
            sent = os.sendfile(target, source, at, min(end - at, _CHUNK))
            if not sent:
                return
            at += sent


def _copy_attributes(source: int, target: int) -> None:
    try:
        names = os.listxattr(source)
    except OSError:  # a file system without them
        return
    for name in names:
        if name.startswith(_KEPT_ATTRIBUTES):
            os.setxattr(target, name, os.getxattr(source, name))
