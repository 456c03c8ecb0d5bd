"""Exchanges that are passed on and not read: what comes back is handed out as it comes.

A brief answer is handed out whole, since most are brief and a stream costs more than they do.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
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

IDLE = 32
WHOLE = 64 * 1024
"""Bytes up to which an answer whose length is known is handed out whole."""
HELD = 256 * 1024
"""Bytes of an answer that wait for who reads it; then the other side has to wait."""

HEAD_SECONDS = 30.0
"""How long the head of an answer may take from its first byte on. How long the first byte takes is up to the caller."""
REASON_BYTES = 64 * 1024
"""Of an answer that only says why not."""

Headers = list[tuple[bytes, bytes]]


class Relay:
    """The way to one server."""

    def __init__(self, url: ServerUrl, certificate: str | None = None, through: bytes | None = None) -> None:
        """``certificate``: the SHA-256 of the only one that the server may show, whoever signed it.

        ``through``: a request, whole, that the server answers by becoming the way to something behind it.
        """
        self.url = url
        self._certificate = certificate
        self._through = through
        self._idle: list[_Passage] = []
        self._busy: set[_Passage] = set()

    async def send(self, head: bytes, body: bytes | AsyncIterable[bytes]) -> RelayedResponse:
        """Send a request: its head, whole but for the empty line, and its body. Returns with the answer's head.

        Raises:
            NotConnected: nothing was sent.
            ConnectionBroke: the request went out, at least in part, and no answer came.
        """
        passage = self._take() or await self._connect()
        self._busy.add(passage)
        passed = RelayedResponse(self, passage)
        try:
            await passage.begin(head, body)
        except BaseException:
            passed.close()
            raise
        return passed

    async def switch(self, head: bytes) -> RelayedResponse | UpgradedConnection:
        """Send a request, whole, that asks for another protocol: what is spoken from then on, or why not.

        Raises as `send` does.
        """
        passage = await self._connect()
        self._busy.add(passage)
        try:
            pipe = await passage.switch(head)
        except BaseException:
            passage.close()
            raise
        finally:
            self._busy.discard(passage)
        if pipe is None:
            return RelayedResponse(self, passage)
        return UpgradedConnection(passage.fields, pipe)

    def close(self) -> None:
        """Hang up, everywhere."""
        for passage in [*self._idle, *self._busy]:
            passage.close()
        self._idle.clear()

    def done(self, passage: _Passage) -> None:
        """An exchange is over: keep its connection if it can be used again."""
        self._busy.discard(passage)
        if passage.reusable and len(self._idle) < IDLE:
            passage.idle_since = asyncio.get_running_loop().time()
            self._idle.append(passage)
        else:
            passage.close()

    def _take(self) -> _Passage | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            passage = self._idle.pop()
            if now - passage.idle_since < client.IDLE_SECONDS and passage.is_alive():
                return passage
            passage.close()
        return None

    async def _connect(self) -> _Passage:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self.url.uds:
                    passage = await unix_sockets.connect(self.url.uds, _Passage)
                else:
                    tls = self._tls() if self.url.tls else None
                    _, passage = await loop.create_connection(_Passage, self.url.host, self.url.port, ssl=tls)
                    self._check(passage)
                return await self._behind(passage)
        except ConnectionLost as error:
            raise ConnectFailed(error.message) from error
        except OSError as error:  # TimeoutError is one of them
            raise ConnectFailed(f"cannot reach {self.url}: {error.strerror or 'no connection in time'}") from error

    async def _behind(self, passage: _Passage) -> _Passage:
        """Go through what is there to what is behind it."""
        if self._through is None:
            return passage
        try:
            pipe = await passage.switch(self._through)
        except BaseException:
            passage.close()
            raise
        if pipe is None:
            refused = await RelayedResponse(self, passage).read(REASON_BYTES)
            raise RelayFailed(refused.decode(errors="replace")[:1000])
        return passage.renewed()

    def _tls(self) -> ssl.SSLContext:
        import ssl

        context = ssl.create_default_context()
        if self._certificate is not None:  # compared as a whole, below
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def _check(self, passage: _Passage) -> None:
        if self._certificate is None:
            return
        shown = passage.certificate()
        if shown is None or hashlib.sha256(shown).hexdigest() != self._certificate:
            passage.close()
            raise ConnectFailed(f"{self.url} shows another certificate than it should")


class RelayFailed(ConnectFailed):
    """What is in between did not become the way to what is behind it; the message is what it said."""


class UpgradedConnection(NamedTuple):
    """A server that speaks something else from now on."""

    headers: Headers
    pipe: RawStream


class RelayedResponse:
    """The answer of a request that was passed on."""

    def __init__(self, relay: Relay, passage: _Passage) -> None:
        self._relay = relay
        self._passage = passage
        self._over = False

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._passage.status

    @property
    def headers(self) -> Headers:
        """As they were sent, names in lower case."""
        return self._passage.fields

    def whole(self) -> bytes | None:
        """The body, if it has come in one piece; None: read it with `chunks`."""
        if not self._passage.complete:
            return None
        body = b"".join(self._passage.chunks)
        self._end()
        return body

    async def read(self, limit: int) -> bytes:
        """The body, whole. Raises AnswerTooLarge when it has more than ``limit`` bytes, else as `chunks` does."""
        found, size = [], 0
        async for data in self.chunks():
            size += len(data)
            if size > limit:
                self.close()
                raise ResponseTooLarge(f"the answer is over the limit of {limit} bytes")
            found.append(data)
        return b"".join(found)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises ConnectionBroke when it ends too early."""
        try:
            while (data := await self._passage.read()) is not None:
                yield data
            self._end()
        finally:
            self.close()

    def close(self) -> None:
        """Hang up, unless it was read to its end."""
        if not self._over:
            self._passage.reusable = False
            self._end()

    def _end(self) -> None:
        self._over = True
        self._relay.done(self._passage)


class _Passage(ClientConnection):
    """One connection, for one exchange at a time."""

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
        self._behind = b""
        self.status = 0
        self.fields: Headers = []
        self.chunks: deque[bytes] = deque()
        self.complete = False

    def certificate(self) -> bytes | None:
        """What the other side has shown."""
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
                sending.result()  # the caller's body broke off
            await begun
        finally:
            if not sending.done():
                sending.cancel()
                self._half_sent, self.reusable = True, False
            await asyncio.wait({sending})
            for future in (sending, begun):
                future.add_done_callback(lambda future: future.cancelled() or future.exception())  # seen

    async def switch(self, head: bytes) -> RawStream | None:
        """Ask for another protocol; None: the answer is one in this one."""
        if self._lost:
            raise ConnectFailed("the connection was closed")
        self._switching = True
        self._begun = self._loop.create_future()
        self._transport.write(head)
        await self._begun
        return RawStream.over(self._transport, self._behind) if self.status == 101 else None

    def renewed(self) -> _Passage:
        """The same connection, which leads to somebody else now."""
        other = _Passage()
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
        """The next of the body; None at its end."""
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
        """Read no more of the answer."""
        self._break(error)
        self._transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._fail(ConnectionLost(f"the head of the instance's answer took over {HEAD_SECONDS:g} s"))

    # --- asyncio's side

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
            self._break(ConnectionLost(f"the instance hung up: {exc or 'EOF'}"))

    def data_received(self, data: bytes) -> None:
        if self._begun is None or self.complete:
            self._transport.abort()
            return
        self._other_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._switching and self.status == 101:
                self._behind = data[upgrade.args[0] :]
                self._transport.pause_reading()
                self._start()
                return
            self._fail(ConnectionLost("the instance switched to a protocol that nobody asked for"))
        except httptools.HttpParserError as error:
            self._fail(ConnectionLost(f"the instance's answer is not HTTP: {error}"))
        if self._other_bytes > MAX_HEADER_BYTES + FRAMING * self._body_bytes:
            self._fail(
                ResponseTooLarge(f"the instance's answer has over {MAX_HEADER_BYTES} bytes that are not its body")
            )
        elif not self.status and self._head_timer is None and self._broken is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_is_late)

    # --- the parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # else it is a trailer, and comes too late to be passed on
            self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101 and self._switching:
            self.status = status
            return
        if status < 200:
            self.fields = []
            if status < 100:
                self._fail(ConnectionLost(f"the instance's answer has the status {status}"))
            return
        self._in_body = True
        self._stop_head_timer()
        if self._other_bytes > MAX_HEADER_BYTES and client.size_of(self.fields) > MAX_HEADER_BYTES:
            self._fail(ResponseTooLarge(f"the headers of the instance's answer are over {MAX_HEADER_BYTES} bytes"))
            return
        names = dict(self.fields)
        length, encoding = names.get(b"content-length"), names.get(b"transfer-encoding")
        if encoding is not None and encoding.strip().lower() != b"chunked":
            self._fail(ConnectionLost("the instance's answer has a transfer-encoding that is not understood"))
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
