"""WebSocket (RFC 6455) over a raw stream: whole messages with a size limit, for both sides of a connection."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import os
import struct
from collections.abc import Iterable

from aenv.errors import InvalidArguments
from aenv.http.messages import STATUS_LINES, Request
from aenv.http.raw_stream import RawStream

SUBPROTOCOL = b"aenv"
"""Subprotocol that browsers offer beside their token, and that is accepted where it is offered."""
MAX_MESSAGE = 1 << 20
"""Limit for the bytes of one message. The other side may be untrusted."""
FINISH_SECONDS = 5.0
PROTOCOLS = b"sec-websocket-protocol"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_CONTROL_BYTES = 125


def server_head(request: Request) -> bytes:
    """Return the head of the response that accepts an upgrade.

    Raises:
        InvalidArguments: the request's key or version is invalid.
    """
    key, version = request.header(b"sec-websocket-key"), request.header(b"sec-websocket-version")
    if not key or version != b"13":
        raise InvalidArguments("invalid WebSocket request; expected Sec-WebSocket-Key and Sec-WebSocket-Version: 13")
    lines = b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: %s\r\n" % _accept(key)
    if SUBPROTOCOL in offered_protocols(request):
        lines += b"sec-websocket-protocol: %s\r\n" % SUBPROTOCOL
    return STATUS_LINES[101] + lines + b"\r\n"


def offered_protocols(request: Request) -> list[bytes]:
    """Return the subprotocols that a client offers."""
    given = b",".join(value for name, value in request.headers if name == PROTOCOLS)
    return [each.strip() for each in given.split(b",") if each.strip()]


def client_headers() -> tuple[bytes, bytes]:
    """Return a new key, and the header lines of a request with it, up to the end of the head."""
    key = base64.b64encode(os.urandom(16))
    lines = b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: %s\r\n\r\n"
    return key, lines % key


def is_accepted(key: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a response's headers accept the upgrade that was requested with this key."""
    return hmac.compare_digest(dict(headers).get(b"sec-websocket-accept", b""), _accept(key))


def _accept(key: bytes) -> bytes:
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


class _ViolationError(Exception):
    """The other side breaks the protocol, or a limit."""

    def __init__(self, code: int) -> None:
        self.code = code


class WebSocket:
    """A WebSocket connection."""

    def __init__(self, stream: RawStream, *, is_client: bool, limit: int = MAX_MESSAGE) -> None:
        self._stream = stream
        self._is_client = is_client
        self._limit = limit
        self._buffer = bytearray()
        self._closed = False
        self.received = 0
        """Frames received so far, pongs included: a peer that is alive answers a `ping`."""

    async def receive(self) -> str | bytes | None:
        """Return the next message; None once the connection is closed or the other side breaks the protocol."""
        try:
            return await self._message()
        except _ViolationError as error:
            await self.close(error.code)
            return None

    async def _message(self) -> str | bytes | None:
        kind, parts, size = 0, list[bytes](), 0
        while True:
            frame = await self._frame()
            if frame is None:
                return None
            final, opcode, data = frame
            if opcode == _CLOSE:
                await self.close()
                return None
            if opcode == _PING:
                await self._send(_PONG, data)
            elif opcode in (_TEXT, _BINARY, _CONTINUATION):
                size += len(data)
                if (opcode == _CONTINUATION) != bool(kind) or size > self._limit:
                    raise _ViolationError(1009 if size > self._limit else 1002)
                kind = kind or opcode
                parts.append(data)
                if final:
                    return _content(kind, b"".join(parts))
            elif opcode != _PONG:
                raise _ViolationError(1002)

    async def send(self, data: str | bytes) -> None:
        """Send a message. Waits while the other side reads too slowly."""
        await (self._send(_TEXT, data.encode()) if isinstance(data, str) else self._send(_BINARY, data))

    async def ping(self) -> None:
        """Ask the other side for a sign of life."""
        await self._send(_PING, b"")

    async def close(self, code: int = 1000) -> None:
        """Close the connection. Closing twice is harmless."""
        if not self._closed:
            await self._send(_CLOSE, struct.pack(">H", code))
            self._closed = True
            self._stream.close()

    async def finish(self) -> None:
        """Close the connection when the other side has closed it, too, or after `FINISH_SECONDS`.

        A connection that is closed at once can lose the last messages, if the other side is sending.
        """
        if self._closed:
            return
        await self._send(_CLOSE, struct.pack(">H", 1000))
        with contextlib.suppress(TimeoutError, _ViolationError):
            async with asyncio.timeout(FINISH_SECONDS):
                while (frame := await self._frame()) is not None and frame[1] != _CLOSE:
                    pass
        self._closed = True
        self._stream.close()

    async def _frame(self) -> tuple[bool, int, bytes] | None:
        head = await self._take(2)
        if head is None:
            return None
        final, opcode, masked, size = bool(head[0] & 0x80), head[0] & 0x0F, bool(head[1] & 0x80), head[1] & 0x7F
        is_control = opcode >= _CLOSE
        if head[0] & 0x70 or masked == self._is_client or (is_control and (size > _CONTROL_BYTES or not final)):
            raise _ViolationError(1002)
        if size > _CONTROL_BYTES:
            length = await self._take(2 if size == 126 else 8)
            if length is None:
                return None
            size = int.from_bytes(length)
        if size > self._limit:
            raise _ViolationError(1009)
        mask = await self._take(4) if masked else b""
        data = await self._take(size) if mask is not None else None
        if mask is None or data is None:
            return None
        self.received += 1
        return final, opcode, _xor(data, mask) if mask else data

    async def _take(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            data = await self._stream.read()
            if not data or self._closed:
                return None
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def _send(self, opcode: int, data: bytes) -> None:
        if self._closed:
            return
        size, bit = len(data), 0x80 if self._is_client else 0
        if size <= _CONTROL_BYTES:
            head = struct.pack(">BB", 0x80 | opcode, bit | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 0x80 | opcode, bit | 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | opcode, bit | 127, size)
        if self._is_client:
            mask = os.urandom(4)
            head, data = head + mask, _xor(data, mask)
        await self._stream.write(head + data)


def _content(kind: int, data: bytes) -> str | bytes:
    if kind == _BINARY:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _ViolationError(1007) from None


def _xor(data: bytes, mask: bytes) -> bytes:
    """Apply a mask of 4 bytes; as integers, since a loop over the bytes takes a hundred times as long."""
    size = len(data)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data) ^ int.from_bytes(pattern)).to_bytes(size)
