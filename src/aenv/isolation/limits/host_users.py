"""Users of the host for sandboxes that root makes: never one for two warm parents that live at the same time.

A user is claimed by a lock on one byte of a file that all platforms of this machine share. The lock belongs to the open
file and not to a process: the warm parent claims its user itself, and the kernel gives it back when the last process
that has the file open is gone, whoever was killed before, and whichever server has adopted the sandboxes meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
from collections.abc import Sequence

FIRST, COUNT = 900_000, 50_000
"""Users that own nothing on any host."""
FOLDERS = ("/run", "/dev/shm", "/tmp")
"""Where the file may be, in this order: what a host has none of, or shows read-only, is passed over."""
NAME = "aenv-users.lock"


def claim(folders: Sequence[str] = FOLDERS, *, first: int = FIRST, count: int = COUNT) -> int:
    """Return a user that nobody else has while this process, or a fork of it that keeps the descriptor, lives.

    The descriptor stays open, also when another program is executed.

    Raises:
        OSError: all users are taken, or the file cannot be had.
    """
    fd = _open(folders)
    begin = secrets.randbelow(count)  # not the one that was given back last: something of it may still be ending
    for place in range(count):
        user = first + (begin + place) % count
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


def is_claimed(user: int, folders: Sequence[str] = FOLDERS) -> bool:
    """Return whether a warm parent that lives has this user."""
    fd = _open(folders)
    try:
        told = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, user))
    finally:
        os.close(fd)
    return bool(struct.unpack_from("h", told)[0] != fcntl.F_UNLCK)


def _lock(kind: int, user: int) -> bytes:
    """``struct flock`` for the byte that stands for a user."""
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
        os.close(fd)  # somebody else has made it, and could take every user
        refused = OSError(errno.EPERM, f"{folder}/{NAME} belongs to another user")
    raise refused or OSError(errno.ENOENT, f"there is no folder for {NAME}")
