"""Targets: our HTTP server with hostile requests, and our clients and the gateway's relay with hostile answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import strategies as st

from aenv.client.instance_client import InstanceClient
from aenv.errors import AEnvError, NetworkError
from aenv.http.messages import Request, Response
from aenv.http.relay import Relay
from aenv.http.server import HttpServer
from aenv.http.url import ServerUrl
from tests.fuzzing.readers import Target

PATIENCE = 20.0
"""Seconds in which everything here ends; what takes longer hangs."""
GOOD = b"GET /good HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
PIECES = (
    b"GET ", b"POST ", b"PUT /x ", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ",
    b"/", b"/a?b=c", b"*", b"http://h/x", b"host: x\r\n", b"content-length: 5\r\n", b"content-length: -1\r\n",
    b"0\r\n\r\n", b"content-length: 5, 6\r\n", b"content-length: 99999999999999999999\r\n",
    b"transfer-encoding: chunked\r\n", b"hello", b"transfer-encoding: gzip, chunked\r\n", b"5\r\nhello\r\n",
    b"fffffffffffffffff\r\n", b"5;x=y\r\n", b"-1\r\n", b"\0", b"expect: 100-continue\r\n",
    b"connection: upgrade\r\nupgrade: websocket\r\n", b"connection: keep-alive\r\n", b"\xff",
    b"authorization: Bearer x\r\n", b": no name\r\n", b"name\r\n", b" folded\r\n",
    b"x: " + b"y" * 70_000 + b"\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 999 Odd\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No\r\n", b"{}", b"HTTP/1.1 2000 Long\r\n",
    b'{"success":true,"data":1}', b"content-type: application/json\r\n", b"[" * 5000,
)  # fmt: skip
REQUEST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 25\r\n\r\n{"success":true,"data":1}'


@st.composite
def spoken(draw: st.DrawFn, usual: bytes) -> list[bytes]:
    """Bytes in the order and the portions in which they are sent."""
    pieces = st.lists(st.sampled_from(PIECES) | st.binary(max_size=12), max_size=14).map(b"".join)
    whole = bytearray(draw(st.just(usual) | pieces | pieces.map(lambda more: usual + more)))
    for _ in range(draw(st.integers(0, 2)) if whole else 0):
        whole[draw(st.integers(0, len(whole) - 1))] = draw(st.integers(0, 255))
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=3)))
    return [bytes(whole[low:high]) for low, high in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


class _Trouble(logging.Handler):
    """What is logged as an error is one: no request and no answer may cause that."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage() + (str(record.exc_info[1]) if record.exc_info else ""))


def watched(work: Callable[[], Awaitable[None]]) -> None:
    """Run it, and fail for what asyncio or our logs tell of, or when it does not end."""
    trouble = _Trouble()
    loggers = [logging.getLogger(name) for name in ("aenv", "asyncio")]

    async def main() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        async with asyncio.timeout(PATIENCE):
            await work()
        assert not told, told

    for logger in loggers:
        logger.addHandler(trouble)
    try:
        asyncio.run(main())
    finally:
        for logger in loggers:
            logger.removeHandler(trouble)
    assert not trouble.seen, trouble.seen


async def said(server: HttpServer, portions: list[bytes]) -> bytes:
    """What the server answers on a connection of its own, until it closes it."""
    ours, theirs = socket.socketpair()
    server.adopt(theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    with contextlib.suppress(ConnectionError):
        for portion in portions:
            writer.write(portion)
            await writer.drain()
        writer.write_eof()
    heard = b""
    with contextlib.suppress(ConnectionError):
        heard = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return heard


def http_server(data: st.DataObject) -> None:
    """Any bytes are answered or hung up on, and the next caller is served."""
    portions = data.draw(spoken(REQUEST))

    async def handler(request: Request) -> Response:
        body = b"".join([part async for part in request.stream]) if request.stream is not None else request.body
        return Response(200, b"%d" % len(body))

    async def work() -> None:
        server = HttpServer(handler, max_body=4096, stream_over=1024 if len(portions) > 1 else None)
        heard = await said(server, portions)
        assert not heard or heard.startswith(b"HTTP/1.1 "), heard[:200]
        good = await said(server, [GOOD])
        assert good.startswith(b"HTTP/1.1 200 "), good[:200]
        await server.close(1.0)
        assert not server.connections

    watched(work)


def _answered(portions: list[bytes], ask: Callable[[ServerUrl], Awaitable[None]]) -> None:
    """Ask a server that says these bytes to whatever it hears, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n\r\n")
            for portion in portions:
                writer.write(portion)
                await writer.drain()
        writer.close()

    async def work() -> None:
        with tempfile.TemporaryDirectory(prefix="aenv-fuzz-") as place:
            server = await asyncio.start_unix_server(serve, f"{place}/s")
            async with server:
                await ask(ServerUrl.parse(f"unix:{place}/s"))

    watched(work)


def instance_answers(data: st.DataObject) -> None:
    """What an instance may answer the SDK."""

    async def ask(url: ServerUrl) -> None:
        client = InstanceClient(url, token="t", patience=0.0)
        with contextlib.suppress(AEnvError):
            await client.call("/tools/x", {}, timeout=PATIENCE / 2)
        with contextlib.suppress(AEnvError):
            await client.fetch("/files?path=x", timeout=PATIENCE / 2)
        client.close()

    _answered(data.draw(spoken(ANSWER)), ask)


def relayed_answers(data: st.DataObject) -> None:
    """What an instance may answer the gateway."""

    async def ask(url: ServerUrl) -> None:
        relay = Relay(url)
        try:
            answer = await relay.send(b"GET / HTTP/1.1\r\nhost: x\r\n", b"")
            async for _ in answer.chunks():
                pass
        except NetworkError:
            return
        finally:
            relay.close()

    _answered(data.draw(spoken(ANSWER)), ask)


TARGETS: dict[str, Target] = {
    "HTTP server": http_server,
    "answers to the SDK": instance_answers,
    "answers to the gateway": relayed_answers,
}
