"""The HTTP client against misbehaving servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from aenv.errors import NetworkError
from aenv.http import client as http
from aenv.http.client import (
    IDLE_SECONDS,
    MAX_ANSWER,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    HttpClient,
    ResponseTooLarge,
    shared,
)
from aenv.http.relay import Relay
from aenv.http.url import ServerUrl
from tests.conftest import run
from tests.http.hostile import CHUNKED, ENDLESS, NOT_HTTP, play

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def against(script: Script, prefix: str = "", **options: object) -> AsyncIterator[HttpClient]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    client = HttpClient(ServerUrl(host, port, prefix=prefix), **options)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        client.close()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # type: ignore[arg-type]
            task.cancel()
        await asyncio.sleep(0.01)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


def test_connections_are_used_again() -> None:
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await read_request(reader):
            writer.write(OK)

    async def talk() -> None:
        async with against(script) as client:
            for _ in range(5):
                assert (await client.request("POST", "/", b"{}")).body == b"ok"

    run(talk())
    assert connections == 1


def test_clients_of_one_loop_share_connections_and_the_next_loop_has_its_own() -> None:
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await read_request(reader):
            writer.write(OK)

    async def talk() -> HttpClient:
        async with against(script) as other:
            for _ in range(3):
                used = shared(other.url)
                assert (await used.request("GET", "/")).body == b"ok"
        return used

    first, second = run(talk()), run(talk())
    assert connections == 2
    assert first is not second


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_a_body_ends_by_chunks_by_length_or_with_the_connection(answer: bytes, body: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)

    async def talk() -> bytes:
        async with against(script) as client:
            return (await client.request("GET", "/")).body

    assert run(talk()) == body


def test_token_headers_and_prefix_are_sent() -> None:
    seen: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(OK)

    async def talk() -> None:
        async with against(script, "/pre", token="t0k", headers=[("X-Mine", "1")]) as client:
            await client.request("POST", "/p", b"{}")

    run(talk())
    assert seen[0].startswith(b"POST /pre/p HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nauthorization: Bearer t0k\r\n" in seen[0]
    assert b"\r\nX-Mine: 1\r\n" in seen[0]


def test_a_deadline_fires_and_the_client_stays_usable() -> None:
    first = True

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal first
        while await read_request(reader):
            if first:
                first = False
                await asyncio.sleep(30)
            writer.write(OK)

    async def talk() -> bytes:
        async with against(script) as client:
            with pytest.raises(DeadlineExceeded):
                await client.request("GET", "/", timeout=0.05)
            return (await client.request("GET", "/", timeout=30)).body

    assert run(talk()) == b"ok"


def test_a_short_deadline_after_a_long_one_fires_in_time() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)
        await asyncio.sleep(30)

    async def talk() -> None:
        async with against(script) as client:
            await client.request("GET", "/", timeout=1000)
            with pytest.raises(DeadlineExceeded):
                await client.request("GET", "/", timeout=0.05)

    run(talk())


def test_a_long_deadline_after_a_short_one_does_not_fire_early() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)
        await asyncio.sleep(0.3)
        writer.write(OK)

    async def talk() -> bytes:
        async with against(script) as client:
            await client.request("GET", "/", timeout=0.1)
            return (await client.request("GET", "/", timeout=30)).body

    assert run(talk()) == b"ok"


def test_a_connection_lost_after_sending_differs_from_a_failed_connect() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async def talk() -> None:
        async with against(script) as client:
            with pytest.raises(ConnectionLost):
                await client.request("POST", "/", b"{}")
        with pytest.raises(ConnectFailed):
            await client.request("POST", "/", b"{}")

    run(talk())


def test_a_response_that_is_not_http_is_a_lost_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"SSH-2.0-OpenSSH\r\n")

    async def talk() -> None:
        async with against(script) as client:
            with pytest.raises(ConnectionLost, match="not HTTP"):
                await client.request("GET", "/")

    run(talk())


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    requests = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        writer.write(OK)  # and closes without announcing it

    async def talk() -> None:
        async with against(script) as client:
            for _ in range(20):
                await client.request("POST", "/", b"{}")
                await asyncio.sleep(0.001)

    run(talk())
    assert requests == 20


def test_cancelling_a_request_leaves_a_usable_client() -> None:
    hang = True
    arrived = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            arrived.set()
            if hang:
                await asyncio.sleep(30)
            writer.write(OK)

    async def talk() -> bytes:
        nonlocal hang
        async with against(script) as client:
            task = asyncio.create_task(client.request("GET", "/"))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            hang = False
            return (await client.request("GET", "/")).body

    assert run(talk()) == b"ok"


def test_a_client_lives_through_several_event_loops() -> None:
    from aenv.http.messages import Request, Response
    from aenv.http.server import HttpServer

    async def ok(request: Request) -> Response:
        return Response(200, b"ok")

    client = HttpClient(ServerUrl("127.0.0.1", 1))

    async def talk() -> bytes:
        server = HttpServer(ok, max_body=100)
        listener = await server.listen(host="127.0.0.1", port=0)
        client.url = ServerUrl("127.0.0.1", listener.sockets[0].getsockname()[1])
        body = (await client.request("GET", "/")).body
        await server.close(1)
        return body

    assert run(talk()) == b"ok"
    assert run(talk()) == b"ok"
    client.close()


def test_line_breaks_in_a_token_are_refused() -> None:
    with pytest.raises(NetworkError, match="line break"):
        HttpClient(ServerUrl("h", 1), token="a\r\nx: y")


async def ask(client: HttpClient, how: str, limit: int) -> bytes:
    """Read a complete response with either of the two clients."""
    if how == "request":
        return (await client.request("GET", "/", limit=limit)).body
    relay = Relay(client.url)
    try:
        return await (await relay.send(client.head("GET", "/"), b"")).read(limit)
    finally:
        relay.close()


MOST_READ = 8 * 1024 * 1024
"""Bytes that may be in buffers of both sides when a client disconnects; far below an endless response."""


@pytest.mark.attack("hostile answers")
@pytest.mark.parametrize("what", [*ENDLESS, *NOT_HTTP])
@pytest.mark.parametrize("how", ["request", "relay"])
def test_a_hostile_response_ends_the_connection(what: str, how: str) -> None:
    sent = [0]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await play({**ENDLESS, **NOT_HTTP}[what], writer, sent)

    async def talk() -> None:
        async with against(script) as client:
            with pytest.raises(ConnectionLost):
                await ask(client, how, MAX_ANSWER)

    run(talk())
    assert sent[0] < MOST_READ


@pytest.mark.attack("hostile answers")
@pytest.mark.parametrize("head", ["", "content-length: 1000000000\r\n", "transfer-encoding: chunked\r\n"])
@pytest.mark.parametrize("how", ["request", "relay"])
def test_a_body_over_the_limit_is_not_held(head: str, how: str) -> None:
    sent = [0]
    limit = 100_000

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        part = b"2000\r\n" + b"x" * 8192 + b"\r\n" if "chunked" in head else b"x" * 8192

        def endless() -> Iterator[bytes]:
            yield f"HTTP/1.1 200 OK\r\n{head}\r\n".encode()
            while True:
                yield part

        await play(endless, writer, sent)

    async def talk() -> None:
        async with against(script) as client:
            with pytest.raises(ResponseTooLarge, match=f"limit of {limit} bytes"):
                await ask(client, how, limit)

    run(talk())
    assert sent[0] < MOST_READ


@pytest.mark.attack("hostile answers")
@pytest.mark.parametrize(
    "drip", [b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n", CHUNKED + b"1;"]
)
def test_a_slow_response_ends_at_the_deadline(drip: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(drip)
        while True:
            writer.write(b"1")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def talk() -> None:
        async with against(script) as client:
            with pytest.raises(DeadlineExceeded):
                await client.request("GET", "/", timeout=0.3)

    run(talk())


def test_a_trailer_is_not_a_header() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED + b"2\r\nok\r\n0\r\nset-cookie: a=b\r\n\r\n")
        await writer.drain()

    async def talk() -> None:
        async with against(script) as client:
            answer = await client.request("GET", "/")
            assert (answer.body, list(answer.headers)) == (b"ok", [b"transfer-encoding"])

    run(talk())


def test_many_small_chunks_are_no_attack() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED)
        for _ in range(100):
            writer.write(b"1\r\nx\r\n" * 1000)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def talk() -> None:
        async with against(script) as client:
            assert len((await client.request("GET", "/")).body) == 100_000

    run(talk())


@pytest.mark.parametrize("how", ["request", "relay"])
def test_a_connection_that_was_idle_for_long_is_not_used_again(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(3):
            await read_request(reader)
            writer.write(OK)

    async def talk() -> None:
        async with against(script) as client:
            relay = Relay(client.url)
            for limit in (IDLE_SECONDS, IDLE_SECONDS, 0.0):
                monkeypatch.setattr(http, "IDLE_SECONDS", limit)
                if how == "request":
                    await client.request("GET", "/")
                else:
                    await (await relay.send(client.head("GET", "/"), b"")).read(100)
            relay.close()

    run(talk())
    assert connections == 2
