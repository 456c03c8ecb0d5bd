"""Silent, slow, numerous and half-open connections: they are closed, and other clients are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from aenv.http import connections, raw_stream, server_connection
from aenv.http import server as http
from aenv.http.client import IDLE_SECONDS
from aenv.http.connections import IDLE_TICKS, SILENT_TICKS, TICK, peer_key
from aenv.http.messages import Request, Response, Stream
from aenv.http.server import HttpServer
from tests.conftest import run
from tests.waiting import wait_until

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Any]


async def ok(request: Request) -> Response:
    return Response(200, b"ok" + b"".join(name for name, _ in request.headers if name == b"x-late"))


@contextlib.asynccontextmanager
async def serving(handler: Any = ok, **options: Any) -> AsyncIterator[tuple[HttpServer, Connect]]:
    server = HttpServer(handler, max_body=1 << 20, **options)
    listening = await server.listen(host="127.0.0.1")
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> Pair:
        before = set(server.connections)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        opened.append(writer)
        await wait_until(lambda: set(server.connections) != before or reader.at_eof())
        return reader, writer

    try:
        yield server, connect
    finally:
        for writer in opened:
            writer.transport.abort()
        await server.close(0)


async def answered(pair: Pair) -> bool:
    """Return whether a request on this connection is answered."""
    reader, writer = pair
    try:
        writer.write(GET)
        return b" 200 " in await reader.readuntil(b"\r\n\r\nok")
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


def tick(server: HttpServer, times: int = 1) -> None:
    """Do what the timer does, without waiting for it."""
    for _ in range(times):
        server.connections.sweep()


@pytest.mark.attack("silent connections")
def test_a_silent_connection_ends_before_an_idle_one() -> None:
    async def main() -> None:
        async with serving() as (server, connect):
            silent, used = await connect(), await connect()
            assert await answered(used)
            tick(server, SILENT_TICKS)
            assert len(server.connections) == 2
            tick(server)
            assert await silent[0].read() == b""
            tick(server, IDLE_TICKS - SILENT_TICKS - 1)
            assert await answered(used)  # its idle time starts again
            tick(server, IDLE_TICKS)
            assert len(server.connections) == 1
            tick(server)
            assert await used[0].read() == b""

    run(main())


@pytest.mark.attack("silent connections")
def test_the_timer_runs_by_itself_and_only_while_there_is_something_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TICK", 0.01)

    async def main() -> None:
        async with serving() as (server, connect):
            assert not server.connections.is_watching
            reader, _ = await connect()
            assert server.connections.is_watching
            assert await reader.read() == b""
            assert not server.connections.is_watching

    run(main())


def test_the_only_connection_from_outside_of_a_sandbox_sets_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of idle instances, timers would keep the machine awake."""
    monkeypatch.setattr(http, "peer_key", lambda connection: connections.OUTSIDE)

    async def main() -> None:
        async with serving() as (server, connect):
            used = await connect()
            assert server.connections.is_watching  # no request has come on it
            assert await answered(used)
            assert not server.connections.is_watching
            second = await connect()
            assert await answered(second)
            assert server.connections.is_watching
            tick(server, IDLE_TICKS + 1)
            assert await used[0].read() == await second[0].read() == b""

    run(main())


@pytest.mark.attack("silent connections")
def test_the_only_connection_from_outside_of_a_sandbox_is_watched_while_it_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "peer_key", lambda connection: connections.OUTSIDE)

    async def handler(request: Request) -> Response:
        return Response(200, b"x" * 10_000_000 if request.header(b"connection") == b"close" else b"ok")

    async def main() -> None:
        async with serving(handler) as (server, connect):
            pair = await connect()
            assert await answered(pair)
            assert not server.connections.is_watching
            pair[1].transport.pause_reading()
            pair[1].write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            [connection] = server.connections
            await wait_until(lambda: connection.is_closing)
            assert server.connections.is_watching
            tick(server, 2)
            await wait_until(lambda: not len(server.connections))

    run(main())


def test_an_open_stream_is_not_idle_and_sets_no_timer() -> None:
    done = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await done.wait()
        await send({"type": "http.response.body", "body": b"end"})

    async def handler(request: Request) -> Stream:
        return Stream(stream)

    async def main() -> None:
        async with serving(handler) as (server, connect):
            reader, writer = await connect()
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\n")
            tick(server, 10)
            assert not server.connections.is_watching  # nothing wakes an instance that only has a stream open
            done.set()
            assert await reader.readuntil(b"0\r\n\r\n")
            await wait_until(lambda: server.connections.is_watching)
            tick(server, IDLE_TICKS + 1)
            assert await reader.read() == b""

    run(main())


@pytest.mark.attack("silent connections")
def test_empty_lines_do_not_keep_a_connection_open() -> None:
    async def main() -> None:
        async with serving() as (server, connect):
            reader, writer = await connect()
            for _ in range(SILENT_TICKS + 1):
                writer.write(b"\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
                tick(server)
            assert await reader.read() == b""

    run(main())


@pytest.mark.attack("silent connections")
def test_a_peer_that_does_not_read_its_response_is_disconnected() -> None:
    async def large(request: Request) -> Stream:
        async def stream(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)

        return Stream(stream)

    async def main() -> None:
        async with serving(large) as (server, connect):
            _, writer = await connect()
            writer.transport.pause_reading()
            writer.write(GET)
            [connection] = server.connections
            await wait_until(lambda: connection.is_stalled)
            tick(server, connections.STALLED_TICKS)
            assert len(server.connections) == 1
            tick(server)
            await wait_until(lambda: not len(server.connections))

    run(main())


@pytest.mark.attack("connection floods")
def test_a_flood_of_silent_connections_makes_room_for_a_request() -> None:
    async def main() -> None:
        async with serving(most=16) as (server, connect):
            used = await connect()
            assert await answered(used)
            flood = [await connect() for _ in range(100)]
            assert len(server.connections) <= 16
            for _ in range(10):
                assert await answered(await connect())
            assert await answered(used)  # a used connection is not evicted
            ended = [pair for pair in flood if pair[0].at_eof()]
            assert len(ended) >= 80

    run(main())


@pytest.mark.attack("connection floods")
def test_one_peer_cannot_use_up_all_connections(tmp_path: Path) -> None:
    """An agent's processes may try this with the server of their own instance."""

    async def main() -> None:
        async with serving(most=16) as (server, connect):
            server.listen_at(str(tmp_path / "s"))
            held = []
            for _ in range(40):
                pair = await connect()
                if await answered(pair):  # each has been used, so none is evicted
                    held.append(pair)
            assert len(held) == 14
            platform = [await asyncio.open_unix_connection(str(tmp_path / "s")) for _ in range(2)]
            assert [await answered(pair) for pair in platform] == [True, True]
            assert not await answered(await connect())
            for _, writer in platform:
                writer.transport.abort()

    run(main())


@pytest.mark.attack("connection floods")
def test_a_flood_of_pipelined_requests_is_bounded() -> None:
    waiting = asyncio.Event()

    async def slow(request: Request) -> Response:
        await waiting.wait()
        return Response(200, b"ok")

    async def main() -> None:
        async with serving(slow) as (server, connect):
            reader, writer = await connect()
            writer.write(GET * 10_000)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            await wait_until(lambda: not len(server.connections))
            waiting.set()

    run(main())


def context(folder: Path) -> ssl.SSLContext:
    from tests.certificates import self_signed

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*self_signed(folder))
    return made


@pytest.mark.attack("half-open handshakes")
def test_half_open_handshakes_count_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HANDSHAKE_SECONDS", 0.5)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE

    async def main() -> None:
        server = HttpServer(ok, max_body=100, most=8)
        listening = await server.listen(host="127.0.0.1", tls=context(tmp_path))
        where = listening.sockets[0].getsockname()
        flood = [await asyncio.open_connection(*where) for _ in range(40)]
        flood[-1][1].write(b"\x16\x03\x01\x02\x00\x01")  # half of a ClientHello
        good = await asyncio.open_connection(*where, ssl=client)
        assert await answered(good)
        assert len(server.connections) <= 8
        for reader, _ in flood:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        await wait_until(lambda: len(server.connections) == 1)
        for _, writer in [*flood, good]:
            writer.transport.abort()
        await server.close(0)

    run(main())


@pytest.mark.attack("endless requests")
@pytest.mark.parametrize(
    ("first", "part"),
    [
        (b"GET / HTTP/1.1\r\nx: ", b"x" * 8192),
        (b"GET /", b"x" * 8192),
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 1000),
        (b"", b"\r\n" * 4096),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;", b"x" * 8192),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: ", b"x" * 8192),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 1000),
    ],
)
def test_an_endless_request_is_not_read(first: bytes, part: bytes) -> None:
    async def main() -> None:
        async with serving() as (_, connect):
            reader, writer = await connect()
            writer.write(first)
            answer = asyncio.ensure_future(reader.readline())
            sent = 0
            while not answer.done() and sent < 1 << 24:
                writer.write(part)
                sent += len(part)
                await asyncio.sleep(0)
            assert b" 431 " in await answer
            assert sent < 1 << 24

    run(main())


@pytest.mark.attack("request smuggling")
def test_a_trailer_is_not_a_request_header() -> None:
    async def main() -> None:
        async with serving() as (_, connect):
            reader, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-late: 1\r\n\r\n")
            assert (await reader.readuntil(b"ok")).endswith(b"\r\n\r\nok")
            writer.write(GET)
            assert (await reader.readuntil(b"ok")).endswith(b"content-length: 2\r\n\r\nok")

    run(main())


@pytest.mark.attack("silent connections")
def test_joined_streams_without_traffic_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_stream, "IDLE_SECONDS", 0.2)

    async def end() -> tuple[raw_stream.RawStream, Pair]:
        ours, theirs = socket.socketpair()
        _, made = await asyncio.get_running_loop().create_connection(raw_stream.RawStream, sock=ours)
        return made, await asyncio.open_connection(sock=theirs)

    async def main() -> None:
        (one, (reader, writer)), (other, (far, behind)) = await end(), await end()
        joined = asyncio.create_task(raw_stream.join(one, other))
        writer.write(b"hello")
        assert await far.readexactly(5) == b"hello"
        await joined
        assert await reader.read() == await far.read() == b""
        for each in (writer, behind):
            each.close()
            await each.wait_closed()

    run(main())


def test_clients_drop_an_idle_connection_before_servers_do() -> None:
    assert IDLE_SECONDS + 30 <= IDLE_TICKS * TICK


def test_all_addresses_of_this_machine_are_one_peer() -> None:
    class Connected:
        family = socket.AF_INET6

        def __init__(self, peer: str, own: str) -> None:
            self.peer, self.own = peer, own

        def getpeername(self) -> tuple[str, int]:
            return self.peer, 1

        def getsockname(self) -> tuple[str, int]:
            return self.own, 2

    def of(peer: str, own: str = "192.0.2.7") -> str:
        return peer_key(Connected(peer, own))  # type: ignore[arg-type]

    here = {of("127.0.0.1"), of("127.9.9.9"), of("::1"), of("::ffff:127.0.0.1"), of("192.0.2.7")}
    assert here == {"this machine"}
    assert of("2001:db8::1") == of("2001:db8::ffff:1") != of("2001:db8:1::1")
    assert of("::ffff:198.51.100.1") == of("198.51.100.1") == "198.51.100.1"
    assert of("fe80::1%eth0") == of("fe80::2%eth0")


@pytest.mark.attack("connection floods")
def test_incomplete_bodies_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "MAX_HELD", 100_000)
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n"

    async def main() -> None:
        async with serving() as (server, connect):
            first, second = await connect(), await connect()
            for _, writer in (first, second):
                writer.write(head + b"x" * 59_999)
                await writer.drain()
            assert b" 503 " in await second[0].readline()
            assert server.held == 59_999
            first[1].write(b"x")
            assert b" 200 " in await first[0].readline()
            assert server.held == 0
            third = await connect()
            third[1].write(head + b"x" * 100)
            await wait_until(lambda: server.held == 100)
            third[1].transport.abort()
            await wait_until(lambda: server.held == 0)

    run(main())
