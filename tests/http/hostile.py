"""Responses that no honest server sends: endless, too large, or not HTTP.

Each of them is written until the other side disconnects, which it is expected to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

Script = Callable[[], Iterator[bytes]]

BLOCK = b"x" * 8192


def _endless(first: bytes, part: bytes) -> Script:
    def script() -> Iterator[bytes]:
        yield first
        while True:
            yield part

    return script


def _whole(data: bytes) -> Script:
    def script() -> Iterator[bytes]:
        yield data

    return script


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"

ENDLESS: dict[str, Script] = {
    "a header value without an end": _endless(OK + b"x: ", BLOCK),
    "a header name without an end": _endless(OK, BLOCK),
    "headers without an end": _endless(OK, b"a: b\r\n" * 1000),
    "a status line without an end": _endless(b"HTTP/1.1 200 ", BLOCK),
    "interim answers without an end": _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "early hints without an end": _endless(b"", b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" * 100),
    "a chunk extension without an end": _endless(CHUNKED + b"1;", BLOCK),
    "chunk extensions without an end": _endless(CHUNKED, b"1;%s\r\nx\r\n" % (b"y" * 4000)),
    "trailers without an end": _endless(CHUNKED + b"0\r\n", b"a: b\r\n" * 1000),
    "a trailer value without an end": _endless(CHUNKED + b"0\r\na: ", BLOCK),
    "a chunk size without an end": _endless(CHUNKED, b"0" * 8192),
}
"""Endless responses that never get to a body, or have almost none of it."""

NOT_HTTP: dict[str, Script] = {
    "two lengths": _whole(OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nok"),
    "a length and chunks": _whole(OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    "a negative length": _whole(OK + b"content-length: -1\r\n\r\n"),
    "a length that overflows": _whole(OK + b"content-length: 99999999999999999999999\r\n\r\n"),
    "a folded header": _whole(OK + b"a: b\r\n c\r\n\r\n"),
    "a NUL in a header": _whole(OK + b"a: b\0c\r\n\r\n"),
    "a carriage return in a header": _whole(OK + b"a: b\rset-cookie: c\r\n\r\n"),
    "a compressed transfer encoding": _whole(OK + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    "a status of two digits": _whole(b"HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n"),
    "a status below 100": _whole(b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n"),
    "another protocol": _whole(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"),
    "no HTTP at all": _whole(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "an end in the middle of the head": _whole(OK + b"content-len"),
    "headers of 65 KiB in one piece": _whole(OK + b"a: %s\r\ncontent-length: 0\r\n\r\n" % (b"x" * 65 * 1024)),
}
"""Responses that end, and are not valid HTTP."""


async def play(script: Script, writer: asyncio.StreamWriter, counted: list[int]) -> None:
    """Write it until the other side disconnects; ``counted`` grows by the bytes sent."""
    for part in script():
        writer.write(part)
        counted[0] += len(part)
        await writer.drain()
