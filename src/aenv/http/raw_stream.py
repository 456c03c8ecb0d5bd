"""A connection that speaks something of which we know nothing: its bytes, both ways."""

from __future__ import annotations

import asyncio
from collections import deque

HELD = 256 * 1024
"""Bytes that wait for who reads them; then the other side has to wait."""
IDLE_SECONDS = 900.0
"""Two joined pipes are closed when nothing has gone either way for so long. WebSocket clients send pings far sooner."""


class RawStream(asyncio.Protocol):
    """One end of it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._ended = False
        self._more: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.sent = 0
        """Bytes that were written to it."""

    @classmethod
    def over(cls, transport: asyncio.Transport, come_already: bytes = b"") -> RawStream:
        """Take a connection, which is not being read, over from whoever had it."""
        pipe = cls()
        pipe._transport, pipe._ended = transport, transport.is_closing()
        if come_already:
            pipe.data_received(come_already)
        transport.set_protocol(pipe)
        if not pipe._ended:
            transport.resume_reading()
        return pipe

    async def read(self) -> bytes:
        """What has come; nothing at the end."""
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
        """Send it; waits while the other side does not keep up."""
        if not self._ended:
            self._transport.write(data)
        await self._writable.wait()
        self.sent += len(data)

    def close(self) -> None:
        """Hang up, when what was written has gone out."""
        self._transport.close()

    # --- asyncio's side

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
    """Have each hear what the other says, until one of them hangs up or both are silent for long."""
    ways = [asyncio.ensure_future(_copy(one, other)), asyncio.ensure_future(_copy(other, one))]
    moved: tuple[int, int] | None = None
    try:
        while (one.sent, other.sent) != moved:
            moved = (one.sent, other.sent)
            done, _ = await asyncio.wait(ways, timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        one.close()
        other.close()


async def _copy(source: RawStream, target: RawStream) -> None:
    while data := await source.read():
        await target.write(data)
