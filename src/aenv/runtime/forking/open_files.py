"""The descriptors of an instance, and how a live fork opens them again.

A fork has a copy of the memory and of the files, and no descriptor. Every number that was open is filled before
anything else is opened: with the same file of the fork's own layer, at the same position, or with /dev/null for what
the fork closes itself. So an object that closes its number later never closes something new.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass

from aenv.isolation.forking.preloaded import FORK_CHANNEL

STANDARD = frozenset((0, 1, 2, FORK_CHANNEL))
MOST_DELETED = 64 << 20
"""Size limit for a file that has no name any more, whose contents are kept in memory."""
_KEPT = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | getattr(os, "O_PATH", 0)
_DELETED = " (deleted)"
_LOCK = re.compile(r"lock:\t\d+: (FLOCK|POSIX) +ADVISORY +(READ|WRITE) \d+ \S+ (\d+) (\d+|EOF)")


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock on a file."""

    kind: str
    exclusive: bool
    start: int
    end: int
    """0: to the end of the file."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A descriptor of a file that forks open again."""

    number: int
    path: str
    flags: int
    position: int
    inheritable: bool
    contents: bytes | None
    """Contents of a file without a name. None: it has one."""
    locks: tuple[HeldLock, ...]


@dataclass(frozen=True, slots=True)
class Descriptors:
    """All descriptors but the standard ones, at the moment of a fork."""

    files: list[OpenFile]
    numbers: list[int]
    """All numbers, those of files too."""
    obstacles: list[str]
    """Descriptors that cannot be opened again, described for people."""


def survey(closed_by_us: Collection[int]) -> Descriptors:
    """Look at all descriptors. ``closed_by_us``: those that forks close themselves."""
    files: list[OpenFile] = []
    numbers: list[int] = []
    obstacles: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            about, target = os.fstat(number), os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the listing's own
            continue
        if number in STANDARD:
            continue
        numbers.append(number)
        if number in closed_by_us:
            continue
        found = _file(number, about, target)
        if isinstance(found, OpenFile):
            files.append(found)
        else:
            obstacles.append(found)
    return Descriptors(files, numbers, obstacles)


def _file(number: int, about: os.stat_result, target: str) -> OpenFile | str:
    kind = stat.S_IFMT(about.st_mode)
    if kind == stat.S_IFSOCK:
        return f"socket {number}"
    if kind == stat.S_IFIFO:
        return f"pipe {number}"
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR):
        return f"descriptor {number} ({target})"
    if target.startswith("/memfd:"):
        return f"memory file {number} ({target[7:].removesuffix(_DELETED)})"
    with open(f"/proc/self/fdinfo/{number}") as file:
        info = file.read()
    flags = int(info.split("flags:\t", 1)[1].split("\n", 1)[0], 8)
    position = int(info.split("pos:\t", 1)[1].split("\n", 1)[0])
    contents = None
    if kind == stat.S_IFREG and target.endswith(_DELETED) and not about.st_nlink:
        if about.st_size > MOST_DELETED or flags & os.O_ACCMODE == os.O_WRONLY:
            return f"deleted file {number} ({target.removesuffix(_DELETED)})"
        contents = os.pread(number, about.st_size, 0)
    locks = tuple(
        HeldLock(kind, how == "WRITE", int(start), 0 if end == "EOF" else int(end) + 1)
        for kind, how, start, end in _LOCK.findall(info)
    )
    return OpenFile(number, target, flags & _KEPT, position, os.get_inheritable(number), contents, locks)


def move_up(numbers: list[int], taken: list[int]) -> list[int]:
    """Move new descriptors above all that were open before the fork; return their numbers."""
    least = max([*taken, *numbers, FORK_CHANNEL], default=0) + 1
    moved = []
    for number in numbers:
        moved.append(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, least))
        os.close(number)
    return moved


def reopen(descriptors: Descriptors) -> None:
    """Fill all numbers in a fork.

    Raises:
        OSError: a file cannot be opened again.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in descriptors.numbers:
        if number != nothing:
            os.dup2(nothing, number, inheritable=False)
    if nothing not in descriptors.numbers:
        os.close(nothing)
    for file in descriptors.files:
        _reopen(file)


def _reopen(file: OpenFile) -> None:
    opened = os.open(file.path, file.flags | os.O_CLOEXEC) if file.contents is None else _unnamed(file)
    if opened != file.number:
        os.dup2(opened, file.number, inheritable=file.inheritable)
        os.close(opened)
    with contextlib.suppress(OSError):  # of a device
        os.lseek(file.number, file.position, os.SEEK_SET)
    for lock in file.locks:
        how = fcntl.LOCK_EX if lock.exclusive else fcntl.LOCK_SH
        if lock.kind == "FLOCK":
            fcntl.flock(file.number, how | fcntl.LOCK_NB)
        else:
            length = lock.end - lock.start if lock.end else 0
            fcntl.lockf(file.number, how | fcntl.LOCK_NB, length, lock.start)


def _unnamed(file: OpenFile) -> int:
    assert file.contents is not None
    made = os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.write(made, file.contents)
        return os.open(f"/proc/self/fd/{made}", file.flags | os.O_CLOEXEC)
    finally:
        os.close(made)
