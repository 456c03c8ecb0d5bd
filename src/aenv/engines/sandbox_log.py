"""The last output of a sandbox, in shared memory that can be handed over to the next server."""

from __future__ import annotations

import mmap
import os
import struct

SIZE = 256 * 1024
_HEAD = struct.Struct("=Q")


class Log:
    """A ring buffer of `SIZE` bytes, after a count of all bytes that were ever written to it."""

    def __init__(self, fd: int = -1) -> None:
        """``fd``: of an existing log."""
        self.fd = fd if fd >= 0 else os.memfd_create("log", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, _HEAD.size + SIZE)
        self._memory = mmap.mmap(self.fd, _HEAD.size + SIZE)

    def append(self, data: bytes) -> None:
        """Append data, over the oldest."""
        written: int = _HEAD.unpack_from(self._memory)[0]
        for part in (data[start : start + SIZE] for start in range(0, len(data), SIZE)):
            place = written % SIZE
            first = part[: SIZE - place]
            self._memory[_HEAD.size + place : _HEAD.size + place + len(first)] = first
            self._memory[_HEAD.size : _HEAD.size + len(part) - len(first)] = part[len(first) :]
            written += len(part)
        _HEAD.pack_into(self._memory, 0, written)

    def since(self, position: int) -> tuple[str, int]:
        """Return the text after a position, as far as it is kept, and the position now."""
        written: int = _HEAD.unpack_from(self._memory)[0]
        count = max(0, min(written - position, written, SIZE))
        place = (written - count) % SIZE
        # Read only what was written: reading the rest of a memfd makes the kernel allocate it.
        end, start = place + count, _HEAD.size
        parts = self._memory[start + place : start + min(end, SIZE)], self._memory[start : start + max(0, end - SIZE)]
        return b"".join(parts).decode(errors="replace"), written

    def close(self) -> None:
        """Close this process's copy. Idempotent."""
        if self.fd >= 0:
            self._memory.close()
            os.close(self.fd)
            self.fd = -1
