"""Byte streams for protocols that the server does not parse, such as WebSocket."""

from __future__ import annotations

import asyncio
from collections import deque

HELD = 256 * 1024
"""Unread bytes at which reading from the connection pauses."""
IDLE_SECONDS = 900.0
"""Joined streams are closed after this long without traffic. WebSocket clients send pings far more often."""


class RawStream(asyncio.Protocol):
    """A connection as a stream of bytes."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._ended = False
        self._more: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.sent = 0
        """Bytes written so far."""

    @classmethod
    def take_over(cls, transport: asyncio.Transport, received: bytes = b"") -> RawStream:
        """Take over a paused connection from its protocol. ``received``: bytes that were read already."""
        stream = cls()
        stream._transport, stream._ended = transport, transport.is_closing()
        if received:
            stream.data_received(received)
        transport.set_protocol(stream)
        if not stream._ended:
            transport.resume_reading()
        return stream

    async def read(self) -> bytes:
        """Return the bytes received so far, waiting for some; empty at the end."""
        while not self._chunks:
            if self._ended:
                return b""
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        data = b"".join(self._chunks)
        self._chunks.clear()
        if self._held > HELD and not self._ended:
            self._transport.resume_reading()
        self._held = 0
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes. Waits while the other side reads too slowly."""
        if not self._ended:
            self._transport.write(data)
        await self._writable.wait()
        self.sent += len(data)

    def close(self) -> None:
        """Close the connection once all written bytes are sent."""
        self._transport.close()

    def detach(self) -> tuple[asyncio.Transport, bytes]:
        """Return the connection, for another protocol to take over, and the bytes that were received and not read."""
        unread = b"".join(self._chunks)
        self._chunks.clear()
        return self._transport, unread

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._held += len(data)
        if self._held > HELD:
            self._transport.pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._writable.set()
        self._wake()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)


async def join(one: RawStream, other: RawStream) -> None:
    """Copy bytes both ways until one side closes or both are silent for `IDLE_SECONDS`."""
    copies = [asyncio.ensure_future(_copy(one, other)), asyncio.ensure_future(_copy(other, one))]
    moved: tuple[int, int] | None = None
    try:
        while (one.sent, other.sent) != moved:
            moved = (one.sent, other.sent)
            done, _ = await asyncio.wait(copies, timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.wait(copies)
        one.close()
        other.close()


async def _copy(source: RawStream, target: RawStream) -> None:
    while data := await source.read():
        await target.write(data)
