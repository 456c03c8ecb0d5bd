"""HTTP messages of the server: requests, responses, and the ASGI types."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol

from aenv.http.raw_stream import RawStream
from aenv.tracing.context import SpanContext

HIGH_WATER = 256 * 1024
MAX_ANSWER = 64 * 1024 * 1024
"""Limit of our clients for the body of a response, unless the caller sets another one."""

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class _StatusLines(dict[int, bytes]):
    """Status lines by status code. A code without a standard name is valid and gets an empty phrase."""

    def __missing__(self, status: int) -> bytes:
        if not 100 <= status <= 999:
            raise KeyError(status)
        line = self[status] = b"HTTP/1.1 %d \r\n" % status
        return line


STATUS_LINES = _StatusLines({s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus})


class ServerConnection(Protocol):
    """The parts of a server connection that bodies and ASGI applications use."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    gone: asyncio.Event
    writable: asyncio.Event
    refused: bool

    def write(self, answer: Response, keep_alive: bool) -> None:
        """Send a complete response."""


class Timing:
    """Measures one request to an instance, and the share of it spent in the author's code."""

    __slots__ = ("_began", "_ended", "_started", "place")

    def __init__(self, place: SpanContext) -> None:
        self.place = place
        self._started = time.perf_counter()
        self._began = self._ended = 0.0

    def mark_tool_start(self) -> None:
        """Record that the author's code starts."""
        self._began = time.perf_counter()

    def mark_tool_end(self) -> None:
        """Record that the author's code has finished."""
        self._ended = time.perf_counter()

    def header(self) -> bytes:
        """Return the measurements as a ``server-timing`` header line."""
        now = time.perf_counter()
        line = f"server-timing: runtime;dur={(now - self._started) * 1000:.3f}"
        if self._began:
            line += f", tool;dur={((self._ended or now) - self._began) * 1000:.3f}"
        return f"{line}\r\n".encode()


class Request:
    """A complete request. Bodies have a size limit, so they are held in memory."""

    __slots__ = ("body", "headers", "method", "path", "query", "stream", "target", "timing")

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        """Path and query as sent."""
        self.path = ""
        self.query = b""
        self.headers: list[tuple[bytes, bytes]] = []
        """Headers as sent, names in lower case."""
        self.body = b""
        self.stream: BodyStream | None = None
        """The body while it arrives, where the server streams large bodies; ``body`` is empty then."""
        self.timing: Timing | None = None
        """Measurements, if the request belongs to a trace."""

    @property
    def loggable_path(self) -> str:
        """The path without signatures (long hex strings), which grant access and must not be logged."""
        return re.sub(r"[0-9a-f]{32,}", "...", self.path)[:500]

    def wants_upgrade_to(self, protocol: bytes) -> bool:
        """Return whether the request asks for an upgrade to this protocol."""
        asks = b"upgrade" in [word.strip() for word in self.header(b"connection").lower().split(b",")]
        return asks and self.header(b"upgrade").lower() == protocol and self.method == "GET"

    def header(self, name: bytes) -> bytes:
        """Return the first header of that (lower case) name, or an empty value."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""


class BodyIncomplete(ConnectionResetError):
    """The body ended before it was complete: the client stopped sending, or the request was refused."""


class BodyStream:
    """A body that is read while it arrives. Reading from the connection pauses when the consumer falls behind."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self.ended = False

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._chunks.append(data)
        self._held += len(data)
        if self._held > HIGH_WATER and not self._paused:
            self._paused = True
            self._connection.transport.pause_reading()
        self._wake()

    def end(self) -> None:
        """Mark the body as complete."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> BodyStream:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self.ended:
                raise StopAsyncIteration
            if self._connection.gone.is_set() or self._connection.refused:
                raise BodyIncomplete("the body ended before it was complete")
            self._waiter = self._connection.loop.create_future()
            await self._waiter
        data = self._chunks.popleft()
        self._held -= len(data)
        if self._paused and self._held < HIGH_WATER // 2:
            self._paused = False
            self._connection.transport.resume_reading()
        return data


class Response:
    """A complete response."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes, headers: bytes = b"content-type: application/json\r\n") -> None:
        self.status = status
        self.body = body
        self.headers = headers
        """Raw header lines, each ended by CRLF. The server adds content-length."""


class Stream:
    """A response that an ASGI application writes itself."""

    __slots__ = ("app", "status")

    def __init__(self, app: ASGIApp, status: int = 200) -> None:
        self.app = app
        self.status = status
        """Status for request counters. The client sees the status that the application sends."""


class Takeover:
    """A response (101) after which ``run`` owns the connection and speaks the agreed protocol."""

    __slots__ = ("head", "run")
    status = 101

    def __init__(self, head: bytes, run: Callable[[RawStream], Awaitable[None]]) -> None:
        self.head = head
        """The complete head of the response, sent first."""
        self.run = run


Answer = Response | Stream | Takeover
Handler = Callable[[Request], Awaitable[Answer]]
