"""Host user ids for sandboxes that root creates; no two live zygotes share one.

A zygote claims its user id by locking one byte of a file that all platforms of this machine share. It is an open file
description lock: the kernel releases it when the last process that has the file open is gone, whichever processes were
killed before, and whichever server has adopted the sandboxes meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path

FIRST, COUNT = 900_000, 50_000
"""Range of user ids, which own nothing on any host."""
FOLDERS = ("/run", "/dev/shm", "/tmp")
"""Candidate folders of the lock file, in this order; missing and read-only ones are skipped."""
NAME = "aenv-users.lock"


def claim(folders: Sequence[str] = FOLDERS, *, first: int = FIRST, count: int = COUNT) -> int:
    """Claim a user id for as long as this process, or a fork of it that keeps the descriptor, lives.

    The descriptor stays open across exec.

    Raises:
        OSError: all user ids are taken, or the lock file cannot be opened.
    """
    fd = _open(folders)
    begin = secrets.randbelow(count)  # not the id released last: some of its processes may still be ending
    for offset in range(count):
        user = first + (begin + offset) % count
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, user))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                continue
            os.close(fd)
            raise
        os.set_inheritable(fd, True)
        return user
    os.close(fd)
    raise OSError(errno.EAGAIN, f"all users from {first} to {first + count - 1} are taken by sandboxes")


def check_mapped(user: int, table: Path = Path("/proc/self/uid_map")) -> None:
    """Raise OSError, with what to do, if this user namespace does not have a user id: it was made for few of them."""
    ranges = [tuple(map(int, line.split())) for line in table.read_text().splitlines()]
    if not any(first <= user < first + count for first, _, count in ranges):
        wanted = f"{FIRST} to {FIRST + COUNT - 1}" if user >= FIRST else str(user)
        raise OSError(
            f"root here is root of a user namespace that has no user ids {wanted} for sandboxes; "
            "run aenv as an ordinary user, or outside of this namespace"
        )


def is_claimed(user: int, folders: Sequence[str] = FOLDERS) -> bool:
    """Return True if a live zygote has claimed this user id."""
    fd = _open(folders)
    try:
        lock = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, user))
    finally:
        os.close(fd)
    return bool(struct.unpack_from("h", lock)[0] != fcntl.F_UNLCK)


def _lock(kind: int, user: int) -> bytes:
    """Return a ``struct flock`` for the byte of a user id."""
    return struct.pack("hh4xqqi4x", kind, os.SEEK_SET, user, 1, 0)


def _open(folders: Sequence[str]) -> int:
    refused: OSError | None = None
    for folder in folders:
        try:
            fd = os.open(f"{folder}/{NAME}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            refused = error
            continue
        about = os.fstat(fd)
        if about.st_uid == os.geteuid() and not about.st_mode & 0o077:
            return fd
        os.close(fd)  # another user created it, and could claim every id
        refused = OSError(errno.EPERM, f"{folder}/{NAME} belongs to another user")
    raise refused or OSError(errno.ENOENT, f"no folder for {NAME}")
