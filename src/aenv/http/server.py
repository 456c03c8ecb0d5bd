"""A small HTTP/1.1 server: one parsed request in, one response out, or an ASGI application for streams.

It exists for two figures. A general-purpose ASGI server and framework spend more on a call than the call itself costs,
and they wake up ten times a second with nothing to do; a thousand idle instances must cost nothing. llhttp (through
httptools) does the parsing, asyncio does TLS. HTTP/2, static files and the rest are left to a proxy in front.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import httptools

from aenv.http import unix_sockets
from aenv.http.asgi import AsgiExchange
from aenv.http.connections import Connections, peer_key
from aenv.http.messages import (
    HIGH_WATER,
    STATUS_LINES,
    Answer,
    BodyIncomplete,
    BodyStream,
    Handler,
    Request,
    Response,
    Stream,
    Takeover,
)
from aenv.http.raw_stream import RawStream

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("aenv.http")

BACKLOG = 1024
MAX_HEADER_BYTES = 64 * 1024
HANDSHAKE_SECONDS = 15.0
HEADER_SECONDS = 30.0  # time limit for the head of a request, so that half a request cannot hold a connection
BODY_SECONDS, BODY_LEAST = 60.0, 16 * 1024
"""Minimum rate of a request body: 16 KiB in 60 s, or 273 bytes per second, while the server reads."""
FRAMING = 8
"""Limit for bytes of chunk headers per byte of body. A chunk of one byte needs five."""
MAX_HELD = 512 * 1024 * 1024
"""Limit for incomplete bodies of all connections together: their senders have shown no token yet."""
PIPELINED = 256
"""Limit for pipelined requests that wait on one connection."""
_TCP_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
"""Accepted connections inherit these from the listening socket. With them the kernel detects within two minutes that a
peer's machine is gone."""


class HttpServer:
    """Serves one handler on any number of listening sockets."""

    def __init__(
        self,
        handler: Handler,
        *,
        max_body: int,
        admit: Callable[[socket.socket], bool] | None = None,
        prompt: Callable[[Request], bool] = lambda request: False,
        stream_over: int | None = None,
        unbounded: Callable[[Request], bool] | None = None,
        most: int | None = None,
        per_peer: int | None = None,
    ) -> None:
        """``most``, ``per_peer``: connection limits, see `Connections`."""
        self.handler = handler
        self.unbounded = unbounded
        """Decides from the head of a request whether its body may have any length. Such a body is streamed."""
        self.stream_over = stream_over
        """Stream bodies that are longer than this, or of unknown length, to the handler. None: never."""
        self.prompt = prompt
        """Tells whether the handler can often answer a request without waiting. It then runs outside of a task until it
        first waits, so it must not use ``asyncio.current_task()`` before."""
        self.admit = admit
        """Checks a new connection. A connection that it rejects is closed without a response."""
        self.max_body = max_body
        self.closing = False
        self.held = 0
        """Bytes held of incomplete bodies."""
        self.connections = Connections(most, per_peer)
        self._listeners: list[unix_sockets.Listener] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()
        self.connections.on_empty = self._quiet.set

    async def listen(
        self,
        *,
        host: str,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> Listening:
        """Accept connections on a TCP address."""
        sockets = await bind_addresses(host, port)
        for listener in sockets:
            listener.listen(BACKLOG)
        self._listeners += [_ServerListener(listener, self, tls) for listener in sockets]
        return Listening(sockets)

    async def open(self, host: str, port: int, uds: str | None) -> str:
        """Listen on a unix socket, if one is given, otherwise on a TCP address. Returns the URL."""
        if uds:
            self.listen_at(uds)
            return f"unix:{uds}"
        listener = await self.listen(host=host, port=port)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{listener.sockets[0].getsockname()[1]}"

    def listen_at(self, path: str) -> None:
        """Listen on a unix socket at that path, replacing a stale socket there."""
        self.accept_on(unix_sockets.bind_path(path))

    def accept_on(self, listener: socket.socket) -> None:
        """Listen on a unix socket that is bound already."""
        listener.listen(BACKLOG)  # repeat it if it listens already: SO_PEERCRED shows clients the last process that did
        self._listeners.append(_ServerListener(listener, self))

    def adopt(self, connection: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve a connected socket."""
        connection.setblocking(False)
        protocol = _Connection(self)
        try:
            accepted = self.connections.add(protocol, peer_key(connection))
        except OSError:  # the peer is gone already
            accepted = False
        if not accepted:
            connection.close()
        elif tls is None:
            unix_sockets.UnixTransport(protocol.loop, connection, protocol).read()
        else:
            protocol.opening = connection
            task = protocol.loop.create_task(self._handshake(connection, protocol, tls))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, connection: socket.socket, protocol: _Connection, tls: ssl.SSLContext) -> None:
        """Do the TLS handshake. Until it is done, the connection counts as a silent one."""
        try:
            await protocol.loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:  # not TLS, an unsupported version, or too slow
            log.debug("a TLS handshake failed: %s", error)
        finally:
            if protocol.opening is not None:
                self.forget(protocol)

    async def close(self, grace: float) -> bool:
        """Stop accepting and wait up to ``grace`` seconds for open requests. Returns whether all finished."""
        self.closing = True
        for listener in self._listeners:
            listener.close()
        there = [connection for connection in self.connections if isinstance(connection, _Connection)]
        tasks = [connection.task for connection in there if connection.task is not None]
        tasks += self._handshakes
        for connection in there:
            connection.close_when_idle()
        finished = True
        if self.connections:
            self._quiet.clear()
            try:
                await asyncio.wait_for(self._quiet.wait(), grace)
            except TimeoutError:
                finished = False
        for left in self.connections:
            left.abort()
        for task in tasks:
            if task not in self._handshakes:  # handshakes end with their sockets
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        return finished

    def forget(self, connection: _Connection) -> None:
        """Remove a connection that is gone."""
        self.connections.forget(connection)


class Listening(NamedTuple):
    """The sockets that a server listens on."""

    sockets: list[socket.socket]


class _ServerListener(unix_sockets.Listener):
    """Passes accepted connections to the server."""

    def __init__(self, listener: socket.socket, server: HttpServer, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(listener, lambda: _Connection(server))
        self._server = server
        self._tls = tls

    def take(self, connection: socket.socket) -> None:
        self._server.adopt(connection, self._tls)


async def bind_addresses(host: str, port: int) -> list[socket.socket]:
    """Bind sockets for all addresses of a host name."""
    loop, bound = asyncio.get_running_loop(), []
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            bound.append(listener)
            for level, option, value in ((socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), *_TCP_OPTIONS):
                listener.setsockopt(level, option, value)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


class _Connection(asyncio.Protocol):
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
