"""Usage of one machine by all local platforms of one user, so that capacity is counted once.

A shared file of slots, one per platform. A platform writes only to its own slot and holds a lock on it, which the
kernel releases when the platform ends; unlocked slots do not count. No platform waits for another: a place is announced
first and withdrawn if there is none, so two platforms never both take the last.
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
"""Layout of a slot: the platform's key, instances, leases, one reserved field."""
_LOCK = struct.Struct("hhqqi4x")
"""The kernel's ``struct flock``."""


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """Usage by one platform."""

    instances: int
    leases: int
    """Processes that use the platform."""


class MachineAccount:
    """This platform's slot, and read access to the others."""

    def __init__(self, path: Path, key: str) -> None:
        """Open the file and lock a slot. ``key``: identifies the platform.

        Raises:
            OSError: the file system or the kernel does not support it, or all slots are taken.
        """
        self._key = key.encode()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._fd, SLOTS * _SLOT.size)
            self._memory = mmap.mmap(self._fd, SLOTS * _SLOT.size)
            self._slot = self._lock_slot()
        except BaseException:
            os.close(self._fd)
            raise
        self._instances = self._leases = 0
        self._write()

    @property
    def other_instances(self) -> int:
        """Instances of the user's other platforms."""
        return sum(
            instances
            for number, (_, instances, _, _) in enumerate(_SLOT.iter_unpack(self._memory))
            if instances and number != self._slot and _is_locked(self._fd, number)
        )

    def set_instances(self, count: int) -> None:
        """Announce how many instances this platform has, including those about to be created."""
        if count != self._instances:
            self._instances = count
            self._write()

    def set_leases(self, count: int) -> None:
        """Announce how many processes use this platform."""
        if count != self._leases:
            self._leases = count
            self._write()

    def close(self) -> None:
        """Release the slot."""
        self._instances = self._leases = 0
        self._write()
        self._memory.close()
        os.close(self._fd)

    def _lock_slot(self) -> int:
        for number in range(SLOTS):
            with contextlib.suppress(BlockingIOError, PermissionError):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, number))
                return number
        raise OSError(f"{SLOTS} local platforms are running already; stop one of them")

    def _write(self) -> None:
        _SLOT.pack_into(self._memory, self._slot * _SLOT.size, self._key, self._instances, self._leases, 0)


def usage_by_platform(path: Path) -> dict[str, MachineUsage]:
    """Return the usage of each running platform, by its key."""
    try:
        with path.open("rb") as file:
            content = file.read(SLOTS * _SLOT.size)
            slots = enumerate(_SLOT.iter_unpack(content)) if len(content) == SLOTS * _SLOT.size else ()
            return {
                key.rstrip(b"\0").decode(): MachineUsage(instances, leases)
                for number, (key, instances, leases, _) in slots
                if _is_locked(file.fileno(), number)
            }
    except OSError:
        return {}


def _is_locked(fd: int, number: int) -> bool:
    """Return True if another open file description holds the lock of a slot."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, number))
    return int(_LOCK.unpack(answer)[0]) != fcntl.F_UNLCK


def _lock(kind: int, number: int) -> bytes:
    return _LOCK.pack(kind, os.SEEK_SET, number, 1, 0)
