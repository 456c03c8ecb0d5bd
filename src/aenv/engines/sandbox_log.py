"""The last of what a sandbox has written, in memory that can be handed on to another process."""

from __future__ import annotations

import mmap
import os
import struct

SIZE = 256 * 1024
_HEAD = struct.Struct("=Q")


class Log:
    """A ring of `SIZE` bytes behind the number of bytes that were ever written to it."""

    def __init__(self, fd: int = -1) -> None:
        """``fd``: of one that there is already."""
        self.fd = fd if fd >= 0 else os.memfd_create("log", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, _HEAD.size + SIZE)
        self._memory = mmap.mmap(self.fd, _HEAD.size + SIZE)

    def append(self, data: bytes) -> None:
        """Keep it; the oldest goes when there is too much."""
        written: int = _HEAD.unpack_from(self._memory)[0]
        for part in (data[start : start + SIZE] for start in range(0, len(data), SIZE)):
            place = written % SIZE
            first = part[: SIZE - place]
            self._memory[_HEAD.size + place : _HEAD.size + place + len(first)] = first
            self._memory[_HEAD.size : _HEAD.size + len(part) - len(first)] = part[len(first) :]
            written += len(part)
        _HEAD.pack_into(self._memory, 0, written)

    def since(self, position: int) -> tuple[str, int]:
        """What was written after a position, as far as it is still there, and the position now."""
        written: int = _HEAD.unpack_from(self._memory)[0]
        count = max(0, min(written - position, written, SIZE))
        place = (written - count) % SIZE
        # Only what was written is read: to read the rest of a memfd is to have the kernel allocate it.
        end, start = place + count, _HEAD.size
        parts = self._memory[start + place : start + min(end, SIZE)], self._memory[start : start + max(0, end - SIZE)]
        return b"".join(parts).decode(errors="replace"), written

    def close(self) -> None:
        """Let go of it; who it was handed on to still has it."""
        if self.fd >= 0:
            self._memory.close()
            os.close(self.fd)
            self.fd = -1
