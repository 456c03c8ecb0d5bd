"""Connection of a client to the HTTP server: parse requests, answer them in turn, and bound what they can hold."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools

from aenv.http.asgi import AsgiExchange
from aenv.http.messages import (
    HIGH_WATER,
    STATUS_LINES,
    Answer,
    BodyIncomplete,
    BodyStream,
    Request,
    Response,
    Stream,
    Takeover,
)
from aenv.http.raw_stream import RawStream
from aenv.http.unix_sockets import UnixTransport

if TYPE_CHECKING:
    from aenv.http.server import HttpServer

log = logging.getLogger("aenv.http")

MAX_HEADER_BYTES = 64 * 1024
HEADER_SECONDS = 30.0  # time limit for the head of a request, so that half a request cannot hold a connection
BODY_SECONDS, BODY_LEAST = 60.0, 16 * 1024
"""Minimum rate of a request body: 16 KiB in 60 s, or 273 bytes per second, while the server reads."""
FRAMING = 8
"""Limit for bytes of chunk headers per byte of body. A chunk of one byte needs five."""
MAX_HELD = 512 * 1024 * 1024
"""Limit for incomplete bodies of all connections together: their senders have shown no token yet."""
PIPELINED = 256
"""Limit for pipelined requests that wait on one connection."""


class HttpServerConnection(asyncio.Protocol):
    """A client's connection. Requests on it are answered in turn, as HTTP/1.1 requires."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)
        self.task: asyncio.Task[None] | None = None
        self.opening: socket.socket | None = None  # during the TLS handshake
        self.quiet = self.stalled = 0
        self.proven = False
        self.waiting: list[tuple[Request, bool]] = []  # pipelined behind the current request
        self.request = Request()
        self.chunks: list[bytes] = []
        self.size = 0
        self.held = 0
        self.header_bytes = 0
        self.other_bytes = 0  # bytes received of a request, without the body
        self.url = b""
        self.in_head = False
        self.in_body = False
        self.checked_size = 0  # size of the body when its rate was last checked
        self.deadline: asyncio.TimerHandle | None = None
        self.refused = False
        self.endless = False  # an event stream that ends only when a side closes
        self.after_upgrade = b""  # bytes that followed an upgrade request
        self.unbounded = False  # the body may have any length
        self.streaming = False  # an ASGI application has the request; on a disconnect it is told, not cancelled
        self.gone = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.opening = None
        self.transport.set_write_buffer_limits(HIGH_WATER)
        if self.server.admit is not None and not self.server.admit(transport.get_extra_info("socket")):
            self.transport.abort()

    # --- Watched, for Connections

    @property
    def is_idle(self) -> bool:
        return self.task is None and self.opening is None and not self.in_head and not self.in_body

    @property
    def is_stalled(self) -> bool:
        return not self.writable.is_set()

    @property
    def is_closing(self) -> bool:
        return self.opening is None and self.transport.is_closing()

    def close(self) -> None:
        self.transport.close()

    # --- asyncio.Protocol, continued

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.writable.set()
        self._stop_deadline()
        self._drop_body()
        if self.task is not None and not self.streaming:
            # The response is no longer wanted. An ASGI application decides for itself: older MCP clients disconnect
            # as soon as they have read the handshake's result, and the session must outlive that.
            self.task.cancel()
        self.server.forget(self)

    def pause_writing(self) -> None:
        self.writable.clear()
        self.server.connections.watch()

    def resume_writing(self) -> None:
        self.stalled = 0
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        self.other_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # A server may ignore the upgrade: the request is answered, and what follows is for the new protocol.
            self.refused = True
            self.after_upgrade = data[upgrade.args[0] :]
            self.transport.pause_reading()
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP: {error}")
        if self.other_bytes > MAX_HEADER_BYTES + FRAMING * self.size:
            self._refuse(431, f"over {MAX_HEADER_BYTES} bytes of the request are not its body")
        if self.in_head and self.deadline is None:
            self.deadline = self.loop.call_later(HEADER_SECONDS, self._head_timed_out)
        elif self.deadline is not None and not self.in_head and not self.in_body:
            self._stop_deadline()
        if self.in_body and self.deadline is None:
            self.checked_size = self.size
            self.deadline = self.loop.call_later(BODY_SECONDS, self._check_body_rate)

    # --- callbacks of the HTTP parser

    def on_message_begin(self) -> None:
        self.request = Request()
        self.chunks = []
        self.size = self.header_bytes = self.other_bytes = self.quiet = 0
        self.url = b""
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if self.in_head:  # otherwise it is a trailer, which comes too late to be a header
            self.request.headers.append((name.lower(), value.rstrip(b" \t")))  # llhttp keeps trailing whitespace

    def on_headers_complete(self) -> None:
        self.in_head, self.in_body = False, True
        self._stop_deadline()
        request = self.request
        request.method = self.parser.get_method().decode("ascii")
        request.target = self.url
        path, _, request.query = self.url.partition(b"?")
        text = path.decode("latin-1")
        request.path = unquote(text) if "%" in text else text
        unbounded = self.server.unbounded
        self.unbounded = unbounded is not None and self.task is None and unbounded(request)
        if int(request.header(b"content-length") or 0) > self.server.max_body and not self.unbounded:
            self._refuse(413, f"the body is over the limit of {self.server.max_body} bytes")
        elif any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in request.headers):
            # llhttp reports it as well, but only after this callback: too late for a streamed body.
            self._refuse(400, "unsupported transfer-encoding")
        elif request.header(b"expect").lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if (self.unbounded or self._is_long(request)) and not self.refused and self.task is None:
            request.stream = BodyStream(self)
            self.task = self.loop.create_task(
                self._serve(request, self.parser.should_keep_alive(), self._answer(request))
            )

    def _is_long(self, request: Request) -> bool:
        if self.server.stream_over is None:
            return False
        length = request.header(b"content-length")
        return int(length) > self.server.stream_over if length else bool(request.header(b"transfer-encoding"))

    def on_body(self, body: bytes) -> None:
        if self.refused:
            return
        self.size += len(body)
        self.other_bytes -= len(body)
        if self.size > self.server.max_body and not self.unbounded:
            self._refuse(413, f"the body is over the limit of {self.server.max_body} bytes")
        elif self.request.stream is not None:
            self.request.stream.feed(body)
        elif self.server.held + len(body) > MAX_HELD:
            self._refuse(503, "the server holds too many incomplete requests")
        else:
            self.chunks.append(body)
            self.held += len(body)
            self.server.held += len(body)

    def on_message_complete(self) -> None:
        self.in_body = False
        if self.refused:
            return
        if not self.proven:
            self.server.connections.prove(self)
        request, chunks = self.request, self.chunks
        if request.stream is not None:
            request.stream.end()
            return
        request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._drop_body()
        keep_alive = self.parser.should_keep_alive() and not self.parser.should_upgrade()
        if self.task is not None:
            if len(self.waiting) >= PIPELINED:
                self._refuse(400, f"over {PIPELINED} requests wait on this connection")
                return
            self.waiting.append((request, keep_alive))
            self.transport.pause_reading()
            return
        if self.server.prompt(request):
            self._begin(request, keep_alive)
        else:
            self.task = self.loop.create_task(self._serve(request, keep_alive, self._answer(request)))

    # --- answering

    def _begin(self, request: Request, keep_alive: bool) -> None:
        """Run the handler up to its first wait, and make a task for the rest: a task costs as much as a brief call."""
        answering = self._answer(request)
        try:
            pending = answering.send(None)
        except StopIteration as end:
            answer: Answer = end.value
            if isinstance(answer, Response) and keep_alive and not self.server.closing:
                self.write(answer, keep_alive)
                return
            rest: Awaitable[Answer] = _completed(answer)
        else:
            rest = _resume(answering, pending)
        self.task = self.loop.create_task(self._serve(request, keep_alive, rest))

    async def _serve(self, request: Request, keep_alive: bool, answering: Awaitable[Answer]) -> None:
        try:
            while True:
                keep_alive = keep_alive and not self.refused and not self.server.closing
                answer = await answering
                if request.stream is not None and not request.stream.ended:
                    keep_alive = False  # the rest of the body would be read as the next request
                if isinstance(answer, Stream):
                    self.endless = request.method == "GET"
                    self.streaming = True
                    keep_alive = await AsgiExchange(self, request, keep_alive).run(answer.app)
                    self.streaming = False
                elif isinstance(answer, Takeover):
                    await self._hand_over(answer)
                    return
                else:
                    self.write(answer, keep_alive)
                if not keep_alive or self.server.closing or self.gone.is_set():
                    self._close_after_response(body_pending=request.stream is not None and not request.stream.ended)
                    return
                if not self.waiting:
                    return
                request, keep_alive = self.waiting.pop(0)
                answering = self._answer(request)
                if not self.waiting:
                    self.transport.resume_reading()
        finally:
            self.task = None
            self.server.connections.watch()

    async def _hand_over(self, answer: Takeover) -> None:
        self.endless = True
        stream = RawStream.take_over(self.transport, self.after_upgrade)
        try:
            self.transport.write(answer.head)
            await answer.run(stream)
        finally:
            stream.close()
            self.gone.set()
            self._stop_deadline()
            self.server.forget(self)

    async def _answer(self, request: Request) -> Answer:
        try:
            return await self.server.handler(request)
        except BodyIncomplete:
            return Response(400, b'{"success":false,"error":"the body ended early"}')
        except Exception:
            log.exception("%s %s failed", request.method, request.loggable_path)
            return Response(500, b'{"success":false,"error":"internal error; see the log","code":"internal"}')

    def write(self, answer: Response, keep_alive: bool) -> None:
        """Send a complete response."""
        body = answer.body
        head = b"".join(
            (
                STATUS_LINES[answer.status],
                answer.headers,
                b"content-length: %d\r\n" % len(body),
                b"\r\n" if keep_alive else b"connection: close\r\n\r\n",
            )
        )
        if len(body) < HIGH_WATER:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)

    def _refuse(self, status: int, why: str) -> None:
        """Answer a request that cannot be handled, and close the connection."""
        if self.refused:
            return
        self.refused = True
        self._drop_body()
        if self.task is None:
            message = b'{"success":false,"error":"%s"}' % why.replace('"', "'").encode()
            self.write(Response(status, message), keep_alive=False)
            self._close_after_response(body_pending=True)
        else:
            self.transport.close()

    def _drop_body(self) -> None:
        """Drop what is held of a body."""
        self.chunks = []
        self.server.held -= self.held
        self.held = 0

    def _close_after_response(self, *, body_pending: bool) -> None:
        if body_pending and not self.gone.is_set() and self.transport.can_write_eof():
            # Closing at once would reset the connection, and a client that still sends would never see the reason.
            self.refused = True
            self.transport.resume_reading()
            with contextlib.suppress(OSError):  # the peer may be gone already
                self.transport.write_eof()
            self.loop.call_later(1.0, self._close_watched)
        else:
            self._close_watched()

    def _close_watched(self) -> None:
        self.transport.close()
        self.server.connections.watch()  # the peer may never read the last bytes

    def _count(self, size: int) -> None:
        self.header_bytes += size
        if self.header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, f"the headers are over {MAX_HEADER_BYTES} bytes")

    def _head_timed_out(self) -> None:
        self._refuse(408, f"the request's head took over {HEADER_SECONDS:g} s")

    def _check_body_rate(self) -> None:
        self.deadline = None
        if not self.in_body:
            return
        if self.transport.is_reading() and self.size - self.checked_size < BODY_LEAST:
            self._refuse(408, f"under {BODY_LEAST} bytes of the body came in {BODY_SECONDS:g} s")
            return
        self.checked_size = self.size
        self.deadline = self.loop.call_later(BODY_SECONDS, self._check_body_rate)

    def _stop_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def close_when_idle(self) -> None:
        if self.opening is not None:
            self.abort()
        elif self.task is None or self.endless:
            self.transport.close()

    def drop(self) -> None:
        """Forget the connection, in a fork that does not have it."""
        if isinstance(self.transport, UnixTransport):
            self.transport.drop()
        self.connection_lost(None)

    def abort(self) -> None:
        if self.opening is not None:
            with contextlib.suppress(OSError):
                self.opening.shutdown(socket.SHUT_RDWR)  # ends the handshake
            return
        if self.task is not None:
            self.task.cancel()
        self.transport.abort()


async def _completed(answer: Answer) -> Answer:
    return answer


@types.coroutine
def _resume(begun: Coroutine[Any, Any, Answer], pending: Any) -> Generator[Any, Any, Answer]:
    """Continue a coroutine that was started outside of a task and waits for ``pending``."""
    try:
        while True:
            try:
                sent = yield pending
            except BaseException as error:
                pending = begun.throw(error)
            else:
                pending = begun.send(sent)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
