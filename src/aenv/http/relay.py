"""Requests that are forwarded without being parsed: the response is passed on while it arrives.

A short response is passed on whole, since most are short and a stream costs more than they do.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable
from typing import TYPE_CHECKING, NamedTuple

import httptools

from aenv.http import client, unix_sockets
from aenv.http.client import (
    CONNECT_SECONDS,
    FRAMING,
    MAX_HEADER_BYTES,
    ClientConnection,
    ConnectFailed,
    ConnectionLost,
    ResponseTooLarge,
)
from aenv.http.raw_stream import RawStream
from aenv.http.url import ServerUrl

if TYPE_CHECKING:
    import ssl

    from aenv.http.forward_proxies import ForwardProxy

IDLE = 32
WHOLE = 64 * 1024
"""Pass on a response of known length whole up to this many bytes."""
HELD = 256 * 1024
"""Unread bytes of a response at which reading from the server pauses."""

HEAD_SECONDS = 30.0
"""Time limit for the head of a response, from its first byte on. The wait for the first byte is up to the caller."""
REASON_BYTES = 64 * 1024
"""Limit for the body of a refusal."""

Headers = list[tuple[bytes, bytes]]


class Relay:
    """Forwards requests to one server, over pooled connections."""

    def __init__(
        self,
        url: ServerUrl,
        certificate: str | None = None,
        tunnel_request: bytes | None = None,
        *,
        proxy: ForwardProxy | None = None,
    ) -> None:
        """``certificate``: SHA-256 of the only certificate to accept from the server, whoever signed it.

        ``tunnel_request``: a complete request that makes the server a tunnel to another server behind it. ``proxy``: to
        reach the server through; heads of requests begin as `target` says then.
        """
        self.url = url
        self._proxy = proxy
        self._certificate = certificate
        self._tunnel_request = tunnel_request
        self._idle: list[_RelayConnection] = []
        self._busy: set[_RelayConnection] = set()

    def target(self, path: bytes) -> bytes:
        """Return how a request names a path: with the server's address where a proxy must know it."""
        if self._proxy is None or self.url.tls:
            return path
        return f"http://{self.url.authority}".encode() + path

    @property
    def proxy_lines(self) -> bytes:
        """Header lines for a proxy that reads the requests."""
        return b"" if self._proxy is None or self.url.tls else self._proxy.lines()

    async def send(self, head: bytes, body: bytes | AsyncIterable[bytes]) -> RelayedResponse:
        """Send a request: its head without the final empty line, and its body. Returns with the head of the response.

        Raises:
            ConnectFailed: nothing was sent.
            ConnectionLost: the request went out, at least in part, and no response came.
        """
        connection = self._take() or await self._connect()
        self._busy.add(connection)
        response = RelayedResponse(self, connection)
        try:
            await connection.begin(head, body)
        except BaseException:
            response.close()
            raise
        return response

    async def switch(self, head: bytes) -> RelayedResponse | UpgradedConnection:
        """Send a complete upgrade request. Returns the upgraded connection, or the response that refuses it.

        Raises as `send` does.
        """
        connection = await self._connect()
        self._busy.add(connection)
        try:
            stream = await connection.switch(head)
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if stream is None:
            return RelayedResponse(self, connection)
        return UpgradedConnection(connection.fields, stream)

    def close(self) -> None:
        """Close all connections."""
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()

    def release(self, connection: _RelayConnection) -> None:
        """Keep the connection of a finished exchange if it can be used again, else close it."""
        self._busy.discard(connection)
        if connection.reusable and len(self._idle) < IDLE:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.close()

    def _take(self) -> _RelayConnection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < client.IDLE_SECONDS and connection.is_alive():
                return connection
            connection.close()
        return None

    async def _connect(self) -> _RelayConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self.url.uds:
                    connection = await unix_sockets.connect(self.url.uds, _RelayConnection)
                else:
                    connection = await self._connect_over_tcp(loop)
                    self._check(connection)
                return await self._enter_tunnel(connection)
        except ConnectionLost as error:
            raise ConnectFailed(error.message) from error
        except OSError as error:  # includes TimeoutError
            why = "no connection in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            failure = ConnectFailed(f"cannot reach {self.url}: {why}", client.unknown_host(error, self.url))
            failure.refused = self._proxy is None and client.is_refusal(error)
            raise failure from error

    async def _connect_over_tcp(self, loop: asyncio.AbstractEventLoop) -> _RelayConnection:
        tls = self._tls() if self.url.tls else None
        if self._proxy is None:
            _, connection = await loop.create_connection(_RelayConnection, self.url.host, self.url.port, ssl=tls)
            return connection
        reached = await self._proxy.connect(self.url)
        name = self.url.host if tls is not None else None
        _, connection = await loop.create_connection(_RelayConnection, sock=reached, ssl=tls, server_hostname=name)
        return connection

    async def _enter_tunnel(self, connection: _RelayConnection) -> _RelayConnection:
        """Open the tunnel, if the relay has one."""
        if self._tunnel_request is None:
            return connection
        try:
            stream = await connection.switch(self._tunnel_request)
        except BaseException:
            connection.close()
            raise
        if stream is None:
            refused = await RelayedResponse(self, connection).read(REASON_BYTES)
            raise RelayFailed(refused.decode(errors="replace")[:1000])
        return connection.tunnelled()

    def _tls(self) -> ssl.SSLContext:
        import ssl

        context = ssl.create_default_context()
        if self._certificate is not None:  # compared by digest in _check
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def _check(self, connection: _RelayConnection) -> None:
        if self._certificate is None:
            return
        shown = connection.certificate()
        if shown is None or hashlib.sha256(shown).hexdigest() != self._certificate:
            connection.close()
            raise ConnectFailed(f"{self.url} presented an unexpected certificate")


class RelayFailed(ConnectFailed):
    """The server did not become a tunnel; the message is its response."""


class UpgradedConnection(NamedTuple):
    """A connection after a successful upgrade."""

    headers: Headers
    stream: RawStream


class RelayedResponse:
    """Response to a forwarded request."""

    def __init__(self, relay: Relay, connection: _RelayConnection) -> None:
        self._relay = relay
        self._connection = connection
        self._over = False

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._connection.status

    @property
    def headers(self) -> Headers:
        """Headers as sent, names in lower case."""
        return self._connection.fields

    def complete_body(self) -> bytes | None:
        """Return the body if it has arrived completely; None: read it with `chunks`."""
        if not self._connection.complete:
            return None
        body = b"".join(self._connection.chunks)
        self._end()
        return body

    async def read(self, limit: int) -> bytes:
        """Return the body. Raises ResponseTooLarge above ``limit`` bytes, otherwise as `chunks` does."""
        found, size = [], 0
        async for data in self.chunks():
            size += len(data)
            if size > limit:
                self.close()
                raise ResponseTooLarge(f"the response is over the limit of {limit} bytes")
            found.append(data)
        return b"".join(found)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body while it arrives. Raises ConnectionLost if it ends too early."""
        try:
            while (data := await self._connection.read()) is not None:
                yield data
            self._end()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection, unless the body was read to its end."""
        if not self._over:
            self._connection.reusable = False
            self._end()

    def _end(self) -> None:
        self._over = True
        self._relay.release(self._connection)


class _RelayConnection(ClientConnection):
    """A connection of a relay, for one exchange at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: asyncio.Future[None] | None = None
        self._more: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._held = 0
        self._broken: ConnectionLost | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._half_sent = False
        self._switching = False
        self._after_upgrade = b""
        self.status = 0
        self.fields: Headers = []
        self.chunks: deque[bytes] = deque()
        self.complete = False

    def certificate(self) -> bytes | None:
        """Return the certificate that the server presented."""
        tls = self._transport.get_extra_info("ssl_object")
        shown: bytes | None = tls.getpeercert(binary_form=True) if tls is not None else None
        return shown

    async def begin(self, head: bytes, body: bytes | AsyncIterable[bytes]) -> None:
        if self._lost:
            raise ConnectFailed("the connection was closed")
        self._other_bytes = self._body_bytes = 0
        self._in_body = False
        self.status, self.fields, self.chunks, self.complete, self.reusable = 0, [], deque(), False, False
        self._held, self._ends_with_connection, self._half_sent = 0, False, False
        begun = self._begun = self._loop.create_future()
        if isinstance(body, bytes):
            self._transport.write(b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body))
            await begun
            return
        sending = asyncio.ensure_future(self._send(head, body))
        try:
            await asyncio.wait({sending, begun}, return_when=asyncio.FIRST_COMPLETED)
            if not begun.done():
                sending.result()  # the caller's body ended early
            await begun
        finally:
            if not sending.done():
                sending.cancel()
                self._half_sent, self.reusable = True, False
            await asyncio.wait({sending})
            for future in (sending, begun):
                future.add_done_callback(lambda future: future.cancelled() or future.exception())  # mark it retrieved

    async def switch(self, head: bytes) -> RawStream | None:
        """Send an upgrade request. Returns None if the server answers without upgrading."""
        if self._lost:
            raise ConnectFailed("the connection was closed")
        self._switching = True
        self._begun = self._loop.create_future()
        self._transport.write(head)
        await self._begun
        return RawStream.take_over(self._transport, self._after_upgrade) if self.status == 101 else None

    def tunnelled(self) -> _RelayConnection:
        """Return this connection with fresh protocol state, for the server at the end of the tunnel."""
        other = _RelayConnection()
        self._transport.set_protocol(other)
        other.connection_made(self._transport)
        return other

    async def _send(self, head: bytes, body: AsyncIterable[bytes]) -> None:
        self._transport.write(head + b"transfer-encoding: chunked\r\n\r\n")
        async for data in body:
            self._transport.write(b"%x\r\n%s\r\n" % (len(data), data))
            await self._writable.wait()
            if self._lost:
                return
        self._transport.write(b"0\r\n\r\n")

    async def read(self) -> bytes | None:
        """Return the next bytes of the body; None at its end."""
        while not self.chunks:
            if self.complete:
                return None
            if self._broken is not None:
                raise self._broken
            self._more = self._loop.create_future()
            await self._more
        data = b"".join(self.chunks)
        self.chunks.clear()
        self._held = 0
        if not self._lost:
            self._transport.resume_reading()
        return data

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def _start(self) -> None:
        self._stop_head_timer()
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(None)

    def _break(self, why: ConnectionLost) -> None:
        self._stop_head_timer()
        if self.complete or self._broken is not None:
            return
        self._broken = why
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(why)
        self._wake()

    def _fail(self, error: ConnectionLost) -> None:
        """Fail the request and read no more of the response."""
        self._break(error)
        self._transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._fail(ConnectionLost(f"the head of the response took over {HEAD_SECONDS:g} s"))

    # --- asyncio.Protocol

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._writable.set()
        if self._ends_with_connection and self.status and self._broken is None:
            self.complete = True
            self._start()
            self._wake()
        else:
            self._break(ConnectionLost(f"the server closed the connection: {exc or 'EOF'}"))

    def data_received(self, data: bytes) -> None:
        if self._begun is None or self.complete:
            self._transport.abort()
            return
        self._other_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._switching and self.status == 101:
                self._after_upgrade = data[upgrade.args[0] :]
                self._transport.pause_reading()
                self._start()
                return
            self._fail(ConnectionLost("the server sent an upgrade that was not requested"))
        except httptools.HttpParserError as error:
            self._fail(ConnectionLost(f"the response is not HTTP: {error}"))
        if self._other_bytes > MAX_HEADER_BYTES + FRAMING * self._body_bytes:
            self._fail(ResponseTooLarge(f"the response has over {MAX_HEADER_BYTES} bytes that are not its body"))
        elif not self.status and self._head_timer is None and self._broken is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_is_late)

    # --- callbacks of the HTTP parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # else it is a trailer, which comes too late to be passed on
            self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101 and self._switching:
            self.status = status
            return
        if status < 200:
            self.fields = []
            if status < 100:
                self._fail(ConnectionLost(f"the response has the invalid status {status}"))
            return
        self._in_body = True
        self._stop_head_timer()
        if self._other_bytes > MAX_HEADER_BYTES and client.header_size(self.fields) > MAX_HEADER_BYTES:
            self._fail(ResponseTooLarge(f"the headers of the response are over {MAX_HEADER_BYTES} bytes"))
            return
        names = dict(self.fields)
        length, encoding = names.get(b"content-length"), names.get(b"transfer-encoding")
        if encoding is not None and encoding.strip().lower() != b"chunked":
            self._fail(ConnectionLost("the response has an unsupported transfer-encoding"))
            return
        self.status = status
        self._ends_with_connection = length is None and encoding is None and status not in (204, 304)
        if length is None or int(length) > WHOLE:
            self._start()

    def on_body(self, body: bytes) -> None:
        self._other_bytes -= len(body)
        self._body_bytes += len(body)
        self.chunks.append(body)
        self._held += len(body)
        if self._held > HELD:
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if not self.status or self.status == 101 or self._broken is not None:
            return
        self.complete = True
        self.reusable = self._parser.should_keep_alive() and not self._half_sent
        self._start()
        self._wake()
