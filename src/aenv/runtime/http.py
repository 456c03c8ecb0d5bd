"""A small HTTP/1.1 server: one parsed request in, one answer out, or an ASGI application for streams.

It exists for two figures. A general ASGI server and framework spend more on a call than the call itself costs,
and they wake up ten times a second with nothing to do; a thousand idle instances must cost nothing.
Parsing is llhttp's (through httptools), TLS is asyncio's. HTTP/2, static files and the rest are left to a proxy in
front.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools

from aenv.client import wire
from aenv.client.pipe import Pipe
from aenv.runtime.asgi import AsgiExchange
from aenv.runtime.messages import (
    HIGH_WATER,
    STATUS_LINES,
    Answer,
    BodyBroke,
    BodyStream,
    Handler,
    Request,
    Response,
    Stream,
    Takeover,
)

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("aenv.http")

BACKLOG = 1024
MAX_HEADER_BYTES = 64 * 1024
BODY_SECONDS = 60.0  # nor one that goes silent in the middle of a body, while we listen
HANDSHAKE_SECONDS = 15.0
HEADER_SECONDS = 30.0  # a client that sends half a request holds a connection no longer than this


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
    ) -> None:
        self.handler = handler
        self.unbounded = unbounded
        """Says of a request, by its head, whether its body may have any length: it reaches the handler as it comes."""
        self.stream_over = stream_over
        """Bodies of more bytes, or of an unknown length, reach the handler while they come. None: no body does."""
        self.prompt = prompt
        """Says of a request that the handler often has its answer without waiting for anything, and that until it first
        waits it does without ``asyncio.current_task()``."""
        self.admit = admit
        """Looks at a new connection; one that it does not like is closed unheard."""
        self.max_body = max_body
        self.closing = False
        self.connections: set[_Connection] = set()
        self._listeners: list[asyncio.Server | wire.Listener] = []
        self._quiet = asyncio.Event()

    async def listen(
        self,
        *,
        host: str,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> asyncio.Server:
        """Accept connections on a TCP address."""
        patience = HANDSHAKE_SECONDS if tls is not None else None
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), host, port, backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=patience
        )
        self._listeners.append(server)
        return server

    async def open(self, host: str, port: int, uds: str | None) -> str:
        """Accept connections on a unix socket, if one is named, and else on a TCP address; its URL."""
        if uds:
            self.listen_at(uds)
            return f"unix:{uds}"
        listener = await self.listen(host=host, port=port)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{listener.sockets[0].getsockname()[1]}"

    def listen_at(self, path: str) -> None:
        """Accept connections on a unix socket of that name; one that somebody left there is replaced."""
        self.accept_on(wire.bound(path))

    def accept_on(self, listener: socket.socket) -> None:
        """Accept connections on a unix socket that has a name already."""
        listener.listen(BACKLOG)  # it may do so already; who did so last is whom the kernel names to those who connect
        self._listeners.append(wire.Listener(listener, lambda: _Connection(self)))

    def adopt(self, connection: socket.socket) -> None:
        """Serve a unix socket that is connected already."""
        connection.setblocking(False)
        wire.Wire(asyncio.get_running_loop(), connection, _Connection(self))

    async def close(self, grace: float) -> bool:
        """Stop accepting, let what is under way finish within ``grace`` seconds; whether it did."""
        self.closing = True
        for listener in self._listeners:
            listener.close()
        tasks = [connection.task for connection in self.connections if connection.task is not None]
        for connection in list(self.connections):
            connection.close_when_idle()
        finished = True
        if self.connections:
            self._quiet.clear()
            try:
                await asyncio.wait_for(self._quiet.wait(), grace)
            except TimeoutError:
                finished = False
        for connection in list(self.connections):
            connection.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        return finished

    def forget(self, connection: _Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if self.closing and not self.connections:
            self._quiet.set()


class _Connection(asyncio.Protocol):
    """One client. Requests on a connection are answered in turn, as HTTP/1.1 wants it."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)
        self.task: asyncio.Task[None] | None = None
        self.waiting: list[tuple[Request, bool]] = []  # pipelined behind the one under way
        self.request = Request()
        self.chunks: list[bytes] = []
        self.size = 0
        self.header_bytes = 0
        self.url = b""
        self.in_head = False
        self.in_body = False
        self.heard = 0.0
        self.deadline: asyncio.TimerHandle | None = None
        self.refused = False
        self.endless = False  # an event stream that ends only when somebody hangs up
        self.behind = b""  # what came after a wish for another protocol
        self.unbounded = False  # the body that comes may have any length
        self.streaming = False  # an ASGI application has the request; it is told of a hang-up, not cancelled
        self.gone = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(HIGH_WATER)
        if self.server.admit is not None and not self.server.admit(transport.get_extra_info("socket")):
            self.transport.abort()
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.writable.set()
        self._stop_deadline()
        if self.task is not None and not self.streaming:
            # Nobody waits for the answer any more. An application decides for itself: MCP's older clients hang up
            # as soon as they have read the handshake's result, and the session must outlive that.
            self.task.cancel()
        self.server.forget(self)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # A server may ignore the wish: the request is answered, and what follows it is only for another protocol.
            self.refused = True
            self.behind = data[upgrade.args[0] :]
            self.transport.pause_reading()
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP: {error}")
        if self.in_head and self.deadline is None:
            self.deadline = self.loop.call_later(HEADER_SECONDS, self._too_slow)
        elif self.deadline is not None and not self.in_head and not self.in_body:
            self._stop_deadline()
        if self.in_body:
            self.heard = self.loop.time()
            if self.deadline is None:
                self.deadline = self.loop.call_later(BODY_SECONDS, self._listen_for_body)

    # --- the parser's side

    def on_message_begin(self) -> None:
        self.request = Request()
        self.chunks = []
        self.size = 0
        self.header_bytes = 0
        self.url = b""
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        self.request.headers.append((name.lower(), value.rstrip(b" \t")))  # llhttp leaves what follows the value

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
            # llhttp says so as well, but only after this: too late for what is passed on as it comes.
            self._refuse(400, "this transfer-encoding is not understood")
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
        if self.size > self.server.max_body and not self.unbounded:
            self._refuse(413, f"the body is over the limit of {self.server.max_body} bytes")
        elif self.request.stream is not None:
            self.request.stream.feed(body)
        else:
            self.chunks.append(body)

    def on_message_complete(self) -> None:
        self.in_body = False
        if self.refused:
            return
        request, chunks = self.request, self.chunks
        if request.stream is not None:
            request.stream.end()
            return
        request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.chunks = []
        keep_alive = self.parser.should_keep_alive() and not self.parser.should_upgrade()
        if self.task is not None:
            self.waiting.append((request, keep_alive))
            self.transport.pause_reading()
            return
        if self.server.prompt(request):
            self._begin(request, keep_alive)
        else:
            self.task = self.loop.create_task(self._serve(request, keep_alive, self._answer(request)))

    # --- answering

    def _begin(self, request: Request, keep_alive: bool) -> None:
        """Go as far as needs no waiting, and make a task only for the rest: it costs as much as a brief call."""
        answering = self._answer(request)
        try:
            pending = answering.send(None)
        except StopIteration as end:
            answer: Answer = end.value
            if isinstance(answer, Response) and keep_alive and not self.server.closing:
                self.write(answer, keep_alive)
                return
            rest: Awaitable[Answer] = _said(answer)
        else:
            rest = _resumed(answering, pending)
        self.task = self.loop.create_task(self._serve(request, keep_alive, rest))

    async def _serve(self, request: Request, keep_alive: bool, answering: Awaitable[Answer]) -> None:
        try:
            while True:
                keep_alive = keep_alive and not self.refused and not self.server.closing
                answer = await answering
                if request.stream is not None and not request.stream.ended:
                    keep_alive = False  # what is still to come of the body would be taken for the next request
                if isinstance(answer, Stream):
                    self.endless = request.method == "GET"
                    self.streaming = True
                    keep_alive = await AsgiExchange(self, request, keep_alive).run(answer.app)
                    self.streaming = False
                elif isinstance(answer, Takeover):
                    await self._give_away(answer)
                    return
                else:
                    self.write(answer, keep_alive)
                if not keep_alive or self.server.closing or self.gone.is_set():
                    self._hang_up(still_coming=request.stream is not None and not request.stream.ended)
                    return
                if not self.waiting:
                    return
                request, keep_alive = self.waiting.pop(0)
                answering = self._answer(request)
                if not self.waiting:
                    self.transport.resume_reading()
        finally:
            self.task = None

    async def _give_away(self, answer: Takeover) -> None:
        self.endless = True
        pipe = Pipe.over(self.transport, self.behind)
        try:
            self.transport.write(answer.head)
            await answer.run(pipe)
        finally:
            pipe.close()
            self.gone.set()
            self._stop_deadline()
            self.server.forget(self)

    async def _answer(self, request: Request) -> Answer:
        try:
            return await self.server.handler(request)
        except BodyBroke:
            return Response(400, b'{"success":false,"error":"the body broke off"}')
        except Exception:
            log.exception("%s %s failed", request.method, request.shown)
            return Response(500, b'{"success":false,"error":"internal error; see the log","code":"internal"}')

    def write(self, answer: Response, keep_alive: bool) -> None:
        """Send a whole answer."""
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
        """Answer a request that is not even one, and hang up."""
        if self.refused:
            return
        self.refused = True
        if self.task is None:
            message = b'{"success":false,"error":"%s"}' % why.replace('"', "'").encode()
            self.write(Response(status, message), keep_alive=False)
            self._hang_up(still_coming=True)
        else:
            self.transport.close()

    def _hang_up(self, *, still_coming: bool) -> None:
        if still_coming and not self.gone.is_set() and self.transport.can_write_eof():
            # Closing at once would reset the connection, and the client, still sending, would never see why.
            self.refused = True
            self.transport.resume_reading()
            with contextlib.suppress(OSError):  # it may be gone, and we be the last to know
                self.transport.write_eof()
            self.loop.call_later(1.0, self.transport.close)
        else:
            self.transport.close()

    def _count(self, size: int) -> None:
        self.header_bytes += size
        if self.header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, f"the headers are over {MAX_HEADER_BYTES} bytes")

    def _too_slow(self) -> None:
        self._refuse(408, f"the request's head took over {HEADER_SECONDS:g} s")

    def _listen_for_body(self) -> None:
        self.deadline = None
        silent = self.loop.time() - self.heard
        if not self.in_body:
            return
        if self.transport.is_reading() and silent >= BODY_SECONDS:
            self._refuse(408, f"nothing came of the body for {BODY_SECONDS:g} s")
            return
        self.deadline = self.loop.call_later(max(BODY_SECONDS - silent, BODY_SECONDS / 4), self._listen_for_body)

    def _stop_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def close_when_idle(self) -> None:
        if self.task is None or self.endless:
            self.transport.close()

    def abort(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.transport.abort()


async def _said(answer: Answer) -> Answer:
    return answer


@types.coroutine
def _resumed(begun: Coroutine[Any, Any, Answer], pending: Any) -> Generator[Any, Any, Answer]:
    """The rest of a coroutine that was begun outside of a task and waits for ``pending``."""
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
