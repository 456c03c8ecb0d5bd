"""What goes in and out of an HTTP server: requests, answers, and the words of ASGI."""

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

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class _StatusLines(dict[int, bytes]):
    """The first line of an answer, by its status. One that has no name in HTTP is valid, and has no phrase."""

    def __missing__(self, status: int) -> bytes:
        if not 100 <= status <= 999:
            raise KeyError(status)
        line = self[status] = b"HTTP/1.1 %d \r\n" % status
        return line


STATUS_LINES = _StatusLines({s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus})


class ServerConnection(Protocol):
    """What a body, or an application, needs to know of the connection that it is on."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    gone: asyncio.Event
    writable: asyncio.Event
    refused: bool

    def write(self, answer: Response, keep_alive: bool) -> None:
        """Send a whole answer."""


class Timing:
    """How long an instance takes for one request, and the author's code for its part of that."""

    __slots__ = ("_began", "_ended", "_started", "place")

    def __init__(self, place: SpanContext) -> None:
        self.place = place
        self._started = time.perf_counter()
        self._began = self._ended = 0.0

    def begins(self) -> None:
        """The author's code does."""
        self._began = time.perf_counter()

    def ended(self) -> None:
        """And is done."""
        self._ended = time.perf_counter()

    def header(self) -> bytes:
        """As a line of the answer's head."""
        now = time.perf_counter()
        line = f"server-timing: runtime;dur={(now - self._started) * 1000:.3f}"
        if self._began:
            line += f", tool;dur={((self._ended or now) - self._began) * 1000:.3f}"
        return f"{line}\r\n".encode()


class Request:
    """One request, whole: bodies are bounded, so they are held in memory."""

    __slots__ = ("body", "headers", "method", "path", "query", "stream", "target", "timing")

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        """Path and query as they were sent."""
        self.path = ""
        self.query = b""
        self.headers: list[tuple[bytes, bytes]] = []
        """As sent, names in lower case."""
        self.body = b""
        self.stream: BodyStream | None = None
        """The body, where the server passes large ones on as they come; ``body`` is empty then."""
        self.timing: Timing | None = None
        """How long it takes, where a trace asks for that."""

    @property
    def shown(self) -> str:
        """The path as it may be written down: a signature in it opens something."""
        return re.sub(r"[0-9a-f]{32,}", "...", self.path)[:500]

    def wants_to_speak(self, protocol: bytes) -> bool:
        """Whether it asks for another protocol, and for this one."""
        asks = b"upgrade" in [word.strip() for word in self.header(b"connection").lower().split(b",")]
        return asks and self.header(b"upgrade").lower() == protocol and self.method == "GET"

    def header(self, name: bytes) -> bytes:
        """The first header of that (lower case) name, or nothing."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""


class BodyIncomplete(ConnectionResetError):
    """Whoever sends a body has stopped before its end, or was stopped."""


class BodyStream:
    """A body that is read while it comes. Whoever sends it is held back when nobody reads."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self.ended = False

    def feed(self, data: bytes) -> None:
        """Some more of it."""
        self._chunks.append(data)
        self._held += len(data)
        if self._held > HIGH_WATER and not self._paused:
            self._paused = True
            self._connection.transport.pause_reading()
        self._wake()

    def end(self) -> None:
        """That was all."""
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
                raise BodyIncomplete("the body ended before it was whole")
            self._waiter = self._connection.loop.create_future()
            await self._waiter
        data = self._chunks.popleft()
        self._held -= len(data)
        if self._paused and self._held < HIGH_WATER // 2:
            self._paused = False
            self._connection.transport.resume_reading()
        return data


class Response:
    """One answer, whole."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes, headers: bytes = b"content-type: application/json\r\n") -> None:
        self.status = status
        self.body = body
        self.headers = headers
        """Raw lines, each ended by CRLF; the length is added."""


class Stream:
    """An answer that an ASGI application writes itself."""

    __slots__ = ("app", "status")

    def __init__(self, app: ASGIApp, status: int = 200) -> None:
        self.app = app
        self.status = status
        """For who counts answers: what the application says is what counts."""


class Takeover:
    """An answer after which the connection is somebody else's, to speak what was agreed on."""

    __slots__ = ("head", "run")
    status = 101

    def __init__(self, head: bytes, run: Callable[[RawStream], Awaitable[None]]) -> None:
        self.head = head
        """What is said first, whole."""
        self.run = run


Answer = Response | Stream | Takeover
Handler = Callable[[Request], Awaitable[Answer]]
