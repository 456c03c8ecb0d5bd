"""The HTTP server, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aenv.http.messages import Request, Response, Stream
from aenv.http.server import HttpServer
from tests.conftest import run


async def echo(request: Request) -> Response | Stream:
    if request.path == "/boom":
        raise RuntimeError("boom")
    if request.path == "/stream":
        return Stream(stream)
    return Response(200, request.body or f"{request.method} {request.path}?{request.query.decode()}".encode())


async def stream(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    for part in (b"one", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(handler: Any = echo, max_body: int = 1000) -> AsyncIterator[tuple[HttpServer, Pair]]:
    server = HttpServer(handler, max_body=max_body)
    listener = await server.listen(host="127.0.0.1", port=0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    try:
        yield server, (reader, writer)
    finally:
        writer.close()
        await server.close(grace=1.0)


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split()[1])
    lines = dict(line.lower().split(b": ", 1) for line in head.splitlines()[1:] if b": " in line)
    if b"content-length" in lines:
        return status, await reader.readexactly(int(lines[b"content-length"]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return status, body


def exchange(*requests: bytes, answers: int = 1, **options: Any) -> list[tuple[int, bytes]]:
    async def talk() -> list[tuple[int, bytes]]:
        async with connected(**options) as (_, (reader, writer)):
            for request in requests:
                writer.write(request)
                await writer.drain()
                await asyncio.sleep(0)
            return [await answer(reader) for _ in range(answers)]

    result: list[tuple[int, bytes]] = run(talk())
    return result


def test_a_request_may_arrive_in_one_piece_or_in_many() -> None:
    request = b"GET /a%20b?c=d HTTP/1.1\r\nHost: x\r\n\r\n"
    assert exchange(request) == [(200, b"GET /a b?c=d")]
    assert exchange(*(request[i : i + 1] for i in range(len(request)))) == [(200, b"GET /a b?c=d")]


def test_pipelined_requests_are_answered_in_order() -> None:
    one, two = (b"POST /%d HTTP/1.1\r\ncontent-length: 1\r\n\r\n%d" % (n, n) for n in (1, 2))
    assert exchange(one + two, answers=2) == [(200, b"1"), (200, b"2")]


def test_a_chunked_body_is_put_together() -> None:
    body = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert exchange(body) == [(200, b"abcde")]


def test_an_announced_body_over_the_limit_is_413() -> None:
    [(status, body)] = exchange(b"POST / HTTP/1.1\r\ncontent-length: 5000\r\n\r\n" + b"x" * 5000)
    assert status == 413
    assert b"limit of 1000 bytes" in body


def test_a_chunked_body_over_the_limit_is_413() -> None:
    chunk = b"1f4\r\n" + b"x" * 500 + b"\r\n"
    [(status, _)] = exchange(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 3)
    assert status == 413


def test_expect_continue_is_answered() -> None:
    async def talk() -> tuple[bytes, tuple[int, bytes]]:
        async with connected() as (_, (reader, writer)):
            writer.write(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
            go_on = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"ok")
            return go_on, await answer(reader)

    go_on, got = run(talk())
    assert go_on == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert got == (200, b"ok")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"this is not http\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    ],
)
def test_an_invalid_request_gets_its_status(request_bytes: bytes, status: int) -> None:
    assert exchange(request_bytes)[0][0] == status


def test_an_unknown_upgrade_is_ignored() -> None:
    upgrade = b"GET /x HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    assert exchange(upgrade) == [(200, b"GET /x?")]


def test_a_handler_that_raises_is_a_500_and_the_connection_stays_open() -> None:
    get = b"GET %s HTTP/1.1\r\n\r\n"
    got = exchange(get % b"/boom", get % b"/fine", answers=2)
    assert got[0][0] == 500
    assert b"boom" not in got[0][1]
    assert got[1] == (200, b"GET /fine?")


def test_an_asgi_application_streams_and_the_connection_is_used_again() -> None:
    get = b"GET %s HTTP/1.1\r\n\r\n"
    assert exchange(get % b"/stream", get % b"/next", answers=2) == [(200, b"onetwo"), (200, b"GET /next?")]


def test_a_client_that_disconnects_cancels_its_request() -> None:
    async def talk() -> bool:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def hang(request: Request) -> Response:
            started.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            raise AssertionError

        async with connected(hang) as (_, (_, writer)):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await started.wait()
            writer.transport.abort()
            await cancelled.wait()
            return True

    assert run(talk())


def test_closing_lets_a_request_finish_and_accepts_no_new_one() -> None:
    async def talk() -> tuple[bool, tuple[int, bytes]]:
        go, started = asyncio.Event(), asyncio.Event()

        async def wait(request: Request) -> Response:
            started.set()
            await go.wait()
            return Response(200, b"done")

        async with connected(wait) as (server, (reader, writer)):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await started.wait()
            closing = asyncio.create_task(server.close(grace=30))
            await asyncio.sleep(0)
            assert server.closing
            go.set()
            return await closing, await answer(reader)

    assert run(talk()) == (True, (200, b"done"))


def test_closing_does_not_wait_for_an_endless_stream() -> None:
    async def forever(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await asyncio.sleep(600)

    async def handler(request: Request) -> Stream:
        return Stream(forever)

    async def talk() -> bool:
        async with connected(handler) as (server, (reader, writer)):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"first")
            return await server.close(grace=30)

    assert run(talk())
