"""What all local platforms of one user have in use together, so that one machine is counted once.

A file of slots, one per platform. A platform writes to its own slot alone and holds a lock on it, which the kernel
releases when the platform ends; a slot without a lock counts for nothing. Nobody ever waits for another platform: a
place is announced first and given up again if there turns out to be none, so two platforms never both take the last.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

SLOTS = 32
_SLOT = struct.Struct("=8sqqq")
"""The platform's key, instances, leases, and room for one more."""
_LOCK = struct.Struct("hhqqi4x")
"""The kernel's ``struct flock``."""


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """By one platform."""

    instances: int
    leases: int
    """Processes that use it."""


class MachineAccount:
    """This platform's slot, and a look at the others."""

    def __init__(self, path: Path, key: str) -> None:
        """``key``: of the platform. Raises OSError where the file system or the kernel cannot do it."""
        self._key = key.encode()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._fd, SLOTS * _SLOT.size)
            self._memory = mmap.mmap(self._fd, SLOTS * _SLOT.size)
            self._own = self._take_slot()
        except BaseException:
            os.close(self._fd)
            raise
        self._instances = self._leases = 0
        self._write()

    @property
    def others(self) -> int:
        """Instances of other platforms of this user."""
        return sum(
            instances
            for number, (_, instances, _, _) in enumerate(_SLOT.iter_unpack(self._memory))
            if instances and number != self._own and _is_locked(self._fd, number)
        )

    def instances(self, count: int) -> None:
        """Say how many this platform has, those that it is about to make included."""
        if count != self._instances:
            self._instances = count
            self._write()

    def leases(self, count: int) -> None:
        """Say how many processes use this platform."""
        if count != self._leases:
            self._leases = count
            self._write()

    def close(self) -> None:
        """Give the slot back."""
        self._instances = self._leases = 0
        self._write()
        self._memory.close()
        os.close(self._fd)

    def _take_slot(self) -> int:
        for number in range(SLOTS):
            with contextlib.suppress(BlockingIOError, PermissionError):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, number))
                return number
        raise OSError(f"there are {SLOTS} local platforms already")

    def _write(self) -> None:
        _SLOT.pack_into(self._memory, self._own * _SLOT.size, self._key, self._instances, self._leases, 0)


def used(path: Path) -> dict[str, MachineUsage]:
    """What each platform that lives has in use, by its key."""
    try:
        with path.open("rb") as file:
            whole = file.read(SLOTS * _SLOT.size)
            slots = enumerate(_SLOT.iter_unpack(whole)) if len(whole) == SLOTS * _SLOT.size else ()
            return {
                key.rstrip(b"\0").decode(): MachineUsage(instances, leases)
                for number, (key, instances, leases, _) in slots
                if _is_locked(file.fileno(), number)
            }
    except OSError:
        return {}


def _is_locked(fd: int, number: int) -> bool:
    """By another open file than this one."""
    asked = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, number))
    return int(_LOCK.unpack(asked)[0]) != fcntl.F_UNLCK


def _lock(kind: int, number: int) -> bytes:
    return _LOCK.pack(kind, os.SEEK_SET, number, 1, 0)
