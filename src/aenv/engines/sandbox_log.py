"""The last output of a sandbox. It can be moved to a memory file, which is handed over to the next server.

The file also has room for a record of the sandbox: a file of its own would take one more descriptor per sandbox.
"""

from __future__ import annotations

import os
import struct

SIZE = 256 * 1024
_HEAD = struct.Struct("=Q")
_RECORD_AT = struct.Struct("=QQ")
"""Place and length of the record in the file; no length: there is none."""
_RECORDS = _HEAD.size + SIZE + _RECORD_AT.size


class Log:
    """The last `SIZE` bytes that were written, and a count of all bytes ever written.

    In the file, a ring buffer comes after the count, and records after that. There is no file until `open` is called:
    a platform whose sandboxes end with it needs none, and every descriptor counts against the limit of the process.
    """

    def __init__(self, fd: int = -1) -> None:
        """``fd``: of an existing log."""
        self.fd = fd
        self._written: int = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))[0] if fd >= 0 else 0
        self._memory = bytearray()
        """The last output while there is no file."""

    def open(self) -> int:
        """Return the descriptor of the file; create it if there is none."""
        if self.fd < 0:
            self.fd = os.memfd_create("log", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, _HEAD.size + SIZE)
            self._written -= len(self._memory)
            self._append_to_file(bytes(self._memory))
            self._memory.clear()
        return self.fd

    def append(self, data: bytes) -> None:
        """Append data, over the oldest."""
        if self.fd >= 0:
            self._append_to_file(data)
            return
        self._memory += data
        self._written += len(data)
        if len(self._memory) > SIZE:
            del self._memory[:-SIZE]

    def _append_to_file(self, data: bytes) -> None:
        for part in (data[start : start + SIZE] for start in range(0, len(data), SIZE)):
            place = self._written % SIZE
            first = part[: SIZE - place]
            os.pwrite(self.fd, first, _HEAD.size + place)
            if len(first) < len(part):
                os.pwrite(self.fd, part[len(first) :], _HEAD.size)
            self._written += len(part)
        os.pwrite(self.fd, _HEAD.pack(self._written), 0)

    def write_record(self, record: bytes) -> None:
        """Put a record into the file, in place of the last one.

        Whenever this process is killed, the file has one of the two: the new one is written to another place first.
        """
        fd = self.open()
        last, length = self._record_at()
        place = _RECORDS if not length or last - _RECORDS >= len(record) else last + length
        written = 0
        while written < len(record):
            written += os.pwrite(fd, record[written:], place + written)
        os.pwrite(fd, _RECORD_AT.pack(place, len(record)), _HEAD.size + SIZE)

    def read_record(self) -> bytes:
        """Return the record.

        Raises:
            ValueError: there is none.
        """
        place, length = self._record_at()
        if not length:
            raise ValueError("the log has no record")
        return os.pread(self.fd, length, place)

    def _record_at(self) -> tuple[int, int]:
        found = os.pread(self.fd, _RECORD_AT.size, _HEAD.size + SIZE)
        place, length = _RECORD_AT.unpack(found) if len(found) == _RECORD_AT.size else (0, 0)
        return place, length

    def since(self, position: int) -> tuple[str, int]:
        """Return the text after a position, as far as it is kept, and the position now."""
        count = max(0, min(self._written - position, self._written, SIZE))
        if count == 0:
            return "", self._written
        data = bytes(self._memory[-count:]) if self.fd < 0 else self._read_file(count)
        return data.decode(errors="replace"), self._written

    def _read_file(self, count: int) -> bytes:
        """Return the last bytes. Reads only what was written: reading the rest makes the kernel allocate it."""
        place = (self._written - count) % SIZE
        first = min(count, SIZE - place)
        data = os.pread(self.fd, first, _HEAD.size + place)
        return data if count == first else data + os.pread(self.fd, count - first, _HEAD.size)

    def close(self) -> None:
        """Close this process's copy; nothing can be read any more. Idempotent."""
        self._written = 0
        self._memory.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
