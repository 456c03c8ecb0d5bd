"""The output of a container as the daemon sends it: frames with a header of eight bytes."""

from __future__ import annotations

import struct

_HEADER = struct.Struct(">B3xL")


def output_text(data: bytes) -> str:
    """Return the text of all whole frames, stdout and stderr in the order of writing."""
    parts, position = [], 0
    while position + _HEADER.size <= len(data):
        _, length = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        parts.append(data[position : position + length])
        position += length
    return b"".join(parts).decode(errors="replace")
