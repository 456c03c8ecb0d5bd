"""A lean asyncio HTTP/1.1 client: pooled connections, a deadline per request, nothing sent twice.

Calls to an instance are small and many, and a general-purpose client costs several times what the call does.
Correctness rests on two rules: a connection that the server closed is detected before it is used again, and a request
that was written is never repeated. Connections idle for `IDLE_SECONDS` are dropped, well before our servers close them.

The other side may be an instance that runs untrusted code, so the size of a response is bounded.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import os
import select
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import httptools

from aenv.errors import NetworkError
from aenv.http import unix_sockets
from aenv.http.messages import MAX_ANSWER
from aenv.http.url import ServerUrl
from aenv.tracing.context import current

if TYPE_CHECKING:
    import ssl

CONNECT_SECONDS = 10.0
IDLE_CONNECTIONS = 64
IDLE_SECONDS = 45.0
"""Drop a connection that was idle for longer: the server may be about to close it."""
MAX_HEADER_BYTES = 64 * 1024
"""Limit for the head of a response, the interim responses before it, and its trailers, together."""
FRAMING = 8
"""Limit for bytes of chunk headers per byte of body. A chunk of one byte needs five."""
HEADS = 256  # cached request heads, one per method and path


class ClientResponse(NamedTuple):
    """A complete response."""

    status: int
    body: bytes
    headers: dict[bytes, bytes]


class ConnectFailed(NetworkError):
    """The server could not be reached, so nothing was sent: a retry is safe."""

    code = "not_connected"
    refused = False
    """True if nothing listens there."""


class ConnectionLost(NetworkError):
    """The connection ended after the request was sent and before its response: it may have been executed."""

    code, retryable = "connection_broke", False


class ResponseTooLarge(ConnectionLost):
    """The head or the body of the response exceeds the limit. The request was executed."""

    code = "answer_too_large"


class DeadlineExceeded(NetworkError, TimeoutError):
    """No response within the time given."""

    code, fault, retryable = "deadline", "timeout", False


class HttpClient:
    """HTTP client for one server, with a pool of idle connections."""

    def __init__(
        self,
        url: ServerUrl,
        *,
        token: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
        certificates: str = "",
    ) -> None:
        """``certificates``: file or folder of trusted certificates; empty: those of the system."""
        self.url = url
        self._certificates = certificates
        self._idle: list[ClientConnection] = []
        self._busy: set[ClientConnection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heads: dict[tuple[str, str], bytes] = {}
        self._tls: ssl.SSLContext | None = None
        self._prefix = url.prefix.encode()
        lines = [f"host: {url.authority}", *(f"{name}: {_one_line(value)}" for name, value in headers)]
        if token:
            lines.append(f"authorization: Bearer {_one_line(token)}")
        self._head = "".join(f"{line}\r\n" for line in lines).encode("latin-1")

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout: float | None = None,
        limit: int = MAX_ANSWER,
    ) -> ClientResponse:
        """Send a request and return its response. ``limit``: maximum size of the response body in bytes.

        Raises:
            ConnectFailed: nothing was sent.
            ConnectionLost: the request was sent, and no response came, or one that is too large.
            DeadlineExceeded: ``timeout`` seconds passed, connecting included.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a second asyncio.run: the old connections died with their loop
            self.close()
            self._loop = loop
        now = loop.time()
        deadline = None if timeout is None else now + timeout
        connection = self._take(now) or await self._connect(timeout)
        head = self._heads.get((method, path)) or self.head(method, path)
        trace = current.get()
        if trace is not None:
            head += b"traceparent: %s\r\n" % trace.header
        if body is None:
            data = head + b"\r\n"
        else:
            data = b"%scontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
                head,
                len(body),
                body,
            )
        self._busy.add(connection)
        try:
            answer = await connection.exchange(data, deadline, limit)
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if connection.reusable and len(self._idle) < IDLE_CONNECTIONS:
            connection.idle_since = loop.time()
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def head(self, method: str, path: str) -> bytes:
        """Return the head of a request, without its length and the final empty line."""
        head = b"%s %s%s HTTP/1.1\r\n%s" % (method.encode(), self._prefix, path.encode(), self._head)
        if len(self._heads) < HEADS:
            self._heads[method, path] = head
        return head

    def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()

    def _take(self, now: float) -> ClientConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < IDLE_SECONDS and connection.is_alive():
                return connection
            connection.close()
        return None

    async def _connect(self, timeout: float | None) -> ClientConnection:
        url = self.url
        loop = asyncio.get_running_loop()
        limit = CONNECT_SECONDS if timeout is None else min(timeout, CONNECT_SECONDS)
        try:
            async with asyncio.timeout(limit):
                if url.uds:
                    connection = await unix_sockets.connect(url.uds, ClientConnection)
                else:
                    _, connection = await loop.create_connection(
                        ClientConnection, url.host, url.port, ssl=self._tls_context() if url.tls else None
                    )
        except TimeoutError as error:
            if timeout is not None and timeout <= CONNECT_SECONDS:
                raise DeadlineExceeded(f"{url} did not accept the connection within {timeout:g} s") from error
            raise ConnectFailed(f"{url} did not accept the connection within {limit:g} s") from error
        except OSError as error:
            failure = ConnectFailed(f"cannot reach {url}: {error.strerror or error}", unknown_host(error, url))
            failure.refused = is_refusal(error)
            raise failure from error
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            import ssl  # most calls stay on the machine and do not need it

            given = self._certificates or None
            folder = given if given and os.path.isdir(given) else None
            try:
                self._tls = ssl.create_default_context(cafile=None if folder else given, capath=folder)
            except OSError as error:
                raise NetworkError(f"cannot read the certificates in {given}: {error}") from None
        return self._tls


_shared: dict[tuple[asyncio.AbstractEventLoop, str], HttpClient] = {}


def shared(url: ServerUrl) -> HttpClient:
    """Return the client of this event loop for that server, shared by all callers.

    Its connections stay open while the loop runs. Without it, a program that creates and releases one instance after
    another would connect anew for each.
    """
    key = (asyncio.get_running_loop(), str(url))
    client = _shared.get(key)
    if client is None:
        _drop_closed_loops()
        client = _shared[key] = HttpClient(url, headers=[("accept", "application/json")])
    return client


def _drop_closed_loops() -> None:
    for key in [key for key in _shared if key[0].is_closed()]:
        _shared.pop(key).close()


atexit.register(_drop_closed_loops)
os.register_at_fork(after_in_child=_shared.clear)  # parent and child must not read from the same connection


class ClientConnection(asyncio.Protocol):
    """A connection that carries one exchange at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._readable: select.poll | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[ClientResponse] | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lost = False
        self._chunks: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._ends_with_connection = False
        self._in_body = False
        self._other_bytes = 0  # bytes received in this exchange, without the body
        self._body_bytes = 0
        self._limit = MAX_ANSWER
        self.reusable = False
        self.idle_since = 0.0

    async def exchange(self, data: bytes, deadline: float | None, limit: int = MAX_ANSWER) -> ClientResponse:
        """Send a request and wait for its response."""
        if self._lost:
            raise ConnectFailed("the connection was closed")
        self._other_bytes = self._body_bytes = 0
        self._in_body = False
        self._limit = limit
        self._chunks = []
        self._headers = {}
        self._ends_with_connection = False
        self.reusable = False
        waiter = self._waiter = self._loop.create_future()
        if deadline is not None:
            self._watch(deadline)
        self._deadline = deadline
        self._transport.write(data)
        try:
            answer: ClientResponse = await waiter
            return answer
        finally:
            self._waiter = None

    def is_alive(self) -> bool:
        """Return whether the connection can be used again.

        Asks the kernel: the event loop may not have noticed yet that the server closed it.
        """
        if self._lost or self._transport.is_closing():
            return False
        # Open and nothing to read is expected between two exchanges; else it was closed, or has unsolicited bytes.
        return self._readable is None or not self._readable.poll(0)

    def close(self) -> None:
        """Abort the connection."""
        if self._loop.is_closed():  # asyncio.run ended while it was open, so no loop will close it
            _close_without_loop(self._transport)
        else:
            self._transport.abort()

    def _watch(self, deadline: float) -> None:
        """Set the timer to ``deadline`` or earlier.

        One timer serves many exchanges: a timer for each would cost as much as the rest of the exchange.
        """
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done() or self._deadline is None:
            return
        if self._loop.time() >= self._deadline:
            self._fail_waiter(DeadlineExceeded("no answer in time"))
        else:
            self._watch(self._deadline)

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if transport.get_extra_info("sslcontext") is None:
            self._readable = select.poll()
            self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None and not self._waiter.done():
            if self._ends_with_connection:
                self.on_message_complete()
            else:
                self._fail_waiter(ConnectionLost(f"the connection broke before the answer: {exc or 'EOF'}"))

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self._transport.abort()
            return
        self._other_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionLost(f"the response is not HTTP: {error}"))
        if self._other_bytes > MAX_HEADER_BYTES + FRAMING * self._body_bytes:
            self._fail(ResponseTooLarge(f"the response has over {MAX_HEADER_BYTES} bytes that are not its body"))

    def _fail(self, error: ConnectionLost) -> None:
        """Fail the request and read no more of the response."""
        if self._waiter is not None and not self._waiter.done():
            self._fail_waiter(error)
        self._transport.abort()

    def _fail_waiter(self, error: NetworkError) -> None:
        assert self._waiter is not None
        self._waiter.set_exception(error)
        self._waiter.exception()  # or asyncio complains if an interrupt has ended the task that waited

    # --- callbacks of the HTTP parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # otherwise it is a trailer
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        headers, status = self._headers, self._parser.get_status_code()
        if status < 200:
            self._headers = {}
            if status < 100 or status == 101:
                self._fail(ConnectionLost(f"the response has the invalid status {status}"))
            return
        self._in_body = True
        if self._other_bytes > MAX_HEADER_BYTES and header_size(headers.items()) > MAX_HEADER_BYTES:
            self._fail(ResponseTooLarge(f"the headers of the response are over {MAX_HEADER_BYTES} bytes"))
            return
        length, encoding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
        self._ends_with_connection = length is None and encoding is None
        if encoding is not None and encoding.strip().lower() != b"chunked":
            self._fail(ConnectionLost("the response has an unsupported transfer-encoding"))
        elif length is not None and int(length) > self._limit:
            self._fail(ResponseTooLarge(f"the response is over the limit of {self._limit} bytes"))

    def on_body(self, body: bytes) -> None:
        self._other_bytes -= len(body)
        self._body_bytes += len(body)
        if self._body_bytes > self._limit:
            self._fail(ResponseTooLarge(f"the response is over the limit of {self._limit} bytes"))
            self._chunks = []
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self.reusable = self._parser.should_keep_alive()
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(ClientResponse(status, body, self._headers))


def _close_without_loop(transport: asyncio.Transport) -> None:
    """Close the socket of a transport whose loop is closed. asyncio has no public way, see `cpython_internals`."""
    if transport.get_extra_info("sslcontext") is not None:
        return
    own = transport.get_extra_info("socket")
    if isinstance(own, socket.socket):
        own.close()
    elif hasattr(transport, "_sock") and transport._sock is not None:
        transport._sock.close()
        transport._sock = None  # or asyncio warns


def unknown_host(error: OSError, url: ServerUrl) -> dict[str, str] | None:
    """Return the details of a failure to connect whose cause is that there is no such host."""
    return {"unknown_host": url.host} if getattr(error, "errno", None) == socket.EAI_NONAME else None


def is_refusal(error: OSError) -> bool:
    """Return whether nothing listens at the address."""
    # asyncio reports a host with several addresses as an OSError without a number, with all errors in its text.
    return isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error)


def header_size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the number of bytes in all names and values."""
    return sum(len(name) + len(value) for name, value in headers)


def _one_line(value: str) -> str:
    if "\r" in value or "\n" in value:
        raise NetworkError("a header or token contains a line break")
    return value
