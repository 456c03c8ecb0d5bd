"""WebSocket messages between our own two sides, and frames that break the protocol."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aenv.http.messages import Answer, Request, Takeover
from aenv.http.raw_stream import RawStream
from aenv.http.relay import Relay, UpgradedConnection
from aenv.http.server import HttpServer
from aenv.http.url import ServerUrl
from aenv.http.websocket import MAX_MESSAGE, WebSocket, client_headers, is_accepted, server_head
from tests.conftest import run


async def echo(stream: RawStream) -> None:
    socket = WebSocket(stream, is_client=False)
    while (message := await socket.receive()) is not None:
        await socket.send(message)
    await socket.finish()


async def handler(request: Request) -> Answer:
    return Takeover(server_head(request), echo)


@asynccontextmanager
async def connected() -> AsyncIterator[RawStream]:
    server = HttpServer(handler, max_body=1000)
    url = await server.open("127.0.0.1", 0, None)
    relay = Relay(ServerUrl.parse(url))
    key, lines = client_headers()
    try:
        switched = await relay.switch(b"GET / HTTP/1.1\r\nhost: localhost\r\n" + lines)
        assert isinstance(switched, UpgradedConnection)
        assert is_accepted(key, switched.headers)
        assert not is_accepted(b"another key", switched.headers)
        yield switched.stream
        switched.stream.close()
    finally:
        relay.close()
        await server.close(0)


def test_messages_of_every_size_come_back() -> None:
    async def main() -> None:
        async with connected() as stream:
            socket = WebSocket(stream, is_client=True)
            for message in (b"", b"x", "häh", b"y" * 125, b"y" * 126, "z" * 65535, b"\0" * 65536, b"q" * MAX_MESSAGE):
                await socket.ping()
                await socket.send(message)
                assert await socket.receive() == message
            await socket.close()
            await socket.close()

    run(main())


def frame(first: int, data: bytes = b"", *, size: int | None = None, masked: bool = True) -> bytes:
    length = struct.pack(">BQ", (0x80 if masked else 0) | 127, len(data) if size is None else size)
    return bytes([first]) + length + (b"\0\0\0\0" if masked else b"") + data


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(0x82, b"x", masked=False), 1002),
        (frame(0x83, b"x"), 1002),
        (frame(0xC2, b"x"), 1002),
        (frame(0x80, b"continued from nothing"), 1002),
        (frame(0x02, b"a") + frame(0x82, b"b"), 1002),
        (frame(0x89, b"x"), 1002),
        (frame(0x81, b"\xff"), 1007),
        (frame(0x82, size=MAX_MESSAGE + 1), 1009),
        (frame(0x82, size=1 << 63), 1009),
        (frame(0x02, b"x" * MAX_MESSAGE) + frame(0x80, b"x"), 1009),
    ],
)
def test_a_frame_that_breaks_the_protocol_closes_the_connection(sent: bytes, code: int) -> None:
    async def main() -> None:
        async with connected() as stream:
            await stream.write(sent)
            data = b""
            while part := await stream.read():
                data += part
            assert data == b"\x88\x02" + struct.pack(">H", code)

    run(main())


def test_a_message_in_pieces_is_put_together() -> None:
    async def main() -> None:
        async with connected() as stream:
            await stream.write(frame(0x01, b"a\xc3") + b"\x89\x80\0\0\0\0" + frame(0x00, b"\xa4") + frame(0x80, b"b"))
            received = b""
            while len(received) < 2 + 6:
                received += await stream.read()
            assert received == b"\x8a\x00" + b"\x81\x04a\xc3\xa4b"

    run(main())
