"""Output of an instance's programs on this machine's terminal.

Programs in an instance are untrusted, and terminals act on what they are sent: titles, clipboards, keys, even answers
that are typed into the shell. So on a terminal control characters are shown, not sent. `aenv instance shell` is the
exception, since its programs must draw. What goes into a pipe or a file is not changed.
"""

from __future__ import annotations

import sys
from typing import IO, Any

_KEPT = "\n\r\t"
_SHOWN = {
    **{number: f"^{chr(number + 64)}" for number in range(32) if chr(number) not in _KEPT},
    127: "^?",
    **{number: f"\\x{number:02x}" for number in range(0x80, 0xA0)},
}


def printable(text: str) -> str:
    """Return text with control characters made visible."""
    return text.translate(_SHOWN)


def write(stream: IO[Any], data: bytes, text: str) -> None:
    """Write output: ``text`` with visible control characters to a terminal, ``data`` elsewhere."""
    if stream.isatty():
        stream.write(printable(text))
    else:
        stream.flush()
        stream.buffer.write(data)  # type: ignore[attr-defined]  # sys.stdout and sys.stderr have one
    stream.flush()


def stdout(data: bytes, text: str) -> None:
    """Write to stdout."""
    write(sys.stdout, data, text)
