"""The client's side of HTTP, against servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from aenv.client.http import ConnectionBroke, DeadlineExceeded, HttpClient, NotConnected, shared
from aenv.client.url import ServerUrl
from aenv.errors import NetworkError
from tests.conftest import run

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def against(script: Script, **options: object) -> AsyncIterator[HttpClient]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    client = HttpClient(ServerUrl(host, port), **options)  # type: ignore[arg-type]
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


def test_all_of_one_loop_share_connections_and_the_next_loop_has_its_own() -> None:
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
def test_every_way_to_end_a_body(answer: bytes, body: bytes) -> None:
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
        async with against(script, token="t0k", headers=[("X-Mine", "1")]) as client:
            client.url = client.url
            client._prefix = b"/pre"
            await client.request("POST", "/p", b"{}")

    run(talk())
    assert seen[0].startswith(b"POST /pre/p HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nauthorization: Bearer t0k\r\n" in seen[0]
    assert b"\r\nX-Mine: 1\r\n" in seen[0]


def test_a_deadline_fires_and_the_client_goes_on() -> None:
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


def test_a_connection_that_breaks_after_sending_is_told_from_one_that_never_was() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async def talk() -> None:
        async with against(script) as client:
            with pytest.raises(ConnectionBroke):
                await client.request("POST", "/", b"{}")
        with pytest.raises(NotConnected):
            await client.request("POST", "/", b"{}")

    run(talk())


def test_an_answer_that_is_not_http_is_a_broken_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"SSH-2.0-OpenSSH\r\n")

    async def talk() -> None:
        async with against(script) as client:
            with pytest.raises(ConnectionBroke, match="not HTTP"):
                await client.request("GET", "/")

    run(talk())


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    requests = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        writer.write(OK)  # and hangs up without saying so

    async def talk() -> None:
        async with against(script) as client:
            for _ in range(20):
                await client.request("POST", "/", b"{}")
                await asyncio.sleep(0.001)

    run(talk())
    assert requests == 20


def test_cancelling_a_request_leaves_a_usable_client() -> None:
    hang = True

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            if hang:
                await asyncio.sleep(30)
            writer.write(OK)

    async def talk() -> bytes:
        nonlocal hang
        async with against(script) as client:
            task = asyncio.create_task(client.request("GET", "/"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            hang = False
            return (await client.request("GET", "/")).body

    assert run(talk()) == b"ok"


def test_a_client_lives_through_several_event_loops() -> None:
    from aenv.runtime.http import HttpServer
    from aenv.runtime.messages import Request, Response

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
