"""Forwarding through the gateway: streaming both ways, with an instance that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from aenv.engines.base import Exit, SandboxRef
from aenv.platform.services.replica_handle import find_health_problem
from aenv.schema.instances import EnvStatus
from tests.conftest import run
from tests.http.hostile import CHUNKED, ENDLESS, NOT_HTTP, play
from tests.platform.between import between, head_of


def test_events_arrive_one_by_one(tmp_path: Path) -> None:
    more = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"9\r\ndata: 1\n\n\r\n")
        await more.wait()
        writer.write(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")

    async def main() -> None:
        async with between(tmp_path, talk) as way:
            way.send("GET /mcp HTTP/1.1")
            head = await way.reader.readuntil(b"data: 1\n\n\r\n")
            assert b"text/event-stream" in head
            more.set()
            assert b"data: 2" in await way.reader.readuntil(b"0\r\n\r\n")

    run(main())


def test_a_large_body_is_forwarded_before_it_is_complete(tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        size = await reader.readuntil(b"\r\n")
        await reader.readexactly(int(size, 16))
        seen.set()
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += await reader.read(65536)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async def main() -> None:
        async with between(tmp_path, talk) as way:
            way.send("PUT /files?path=/x HTTP/1.1\r\ncontent-length: 200000", b"x" * 100_000)
            await seen.wait()
            way.writer.write(b"x" * 100_000)
            assert (await way.answer())[::2] == (200, b"ok")

    run(main())


def test_a_slow_reader_holds_the_instance_back(tmp_path: Path) -> None:
    total, sent = 64 << 20, 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async def main() -> None:
        async with between(tmp_path, talk) as way:
            way.send("GET /files?path=/x HTTP/1.1")
            await way.reader.readuntil(b"\r\n\r\n")
            before = -1
            while before != sent:  # it stops long before the end
                before = sent
                await asyncio.sleep(0.2)
            assert sent < total // 4
            left = total
            while left:
                left -= len(await way.reader.read(1 << 20))
            assert left == 0

    run(main())


def test_a_client_that_disconnects_is_disconnected_from_the_instance(tmp_path: Path) -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        assert await reader.readexactly(2) == b"{}"
        arrived.set()
        assert await reader.read() == b""
        gone.set()

    async def main() -> None:
        async with between(tmp_path, talk) as way:
            way.send("POST /tools/wait HTTP/1.1\r\ncontent-length: 2", b"{}")
            await arrived.wait()
            way.writer.close()
            await gone.wait()

    run(main())


def test_the_instance_gets_its_own_token_and_a_request_framed_anew(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                heads.append(await head_of(reader))
            except asyncio.IncompleteReadError:
                return
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nset-cookie: a\r\nset-cookie: b\r\n\r\nok")

    async def main() -> None:
        async with between(tmp_path, talk) as way:
            way.send("GET /a%2Fb?q=%20 HTTP/1.1\r\ncookie: mine\r\nconnection: x-hop\r\nx-kept: yes\r\nte: trailers")
            status, _, body = await way.answer()
            assert (status, body) == (200, b"ok")
            way.send(f"GET /instance/{way.name}/mcp HTTP/1.1")
            assert (await way.answer())[0] == 200
            way.send("HEAD /health HTTP/1.1")
            assert (await way.answer())[0] == 200

    run(main())
    assert heads[0].startswith(b"GET /a%2Fb?q=%20 HTTP/1.1\r\n")
    assert b"authorization: Bearer inner-token\r\n" in heads[0]
    assert b"x-kept: yes" in heads[0]
    for word in (b"cookie", b"x-hop", b"te:", b"aenvcore", b"AEnvCore"):
        assert word not in heads[0]
    assert heads[1].startswith(b"GET /mcp HTTP/1.1\r\n")
    assert heads[2].startswith(b"GET /health HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "smuggled",
    [
        "content-length: 2\r\ncontent-length: 5",
        "content-length: 2\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked, identity",
        "content-length: +2",
        "content-length: 0x2",
        "content-length: 2, 5",
        "content-length: 18446744073709551618",
        "content-length : 2",
        " content-length: 2",
        "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\ncontent-length: 2",
        "transfer-encoding: xchunked",
        "transfer-encoding : chunked",
        "x: y\n content-length: 2",
        "x: y\ncontent-length: 2",
        "x: a\0b",
        "x: a\rb: c",
        "(x): y",
    ],
)
def test_two_lengths_are_refused(tmp_path: Path, smuggled: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("nothing may arrive")

    async def main() -> None:
        async with between(tmp_path, talk) as way:
            way.send(f"POST /tools/x HTTP/1.1\r\n{smuggled}", b"0\r\n\r\n")
            assert (await way.reader.readline()).split()[1] == b"400"

    run(main())


def test_an_instance_that_dies_before_or_during_a_response_is_reported(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        if b"/half" in head:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n")
            await writer.drain()

    async def main() -> None:
        async with between(tmp_path, talk) as way:
            way.send("GET /half HTTP/1.1")
            assert (await way.reader.read()).endswith(b"4\r\nhalf\r\n")  # no last chunk: so the client notices
        async with between(tmp_path / "again", talk) as way:
            way.engine.exit = Exit(-9, "killed")
            way.send("POST /tools/x HTTP/1.1\r\ncontent-length: 2", b"{}")
            status, _, body = await way.answer()
            assert status == 502
            assert b'"sent":true' in body
            way.send("POST /tools/x HTTP/1.1\r\ncontent-length: 2", b"{}")
            status, _, body = await way.answer()
            assert status == 410
            assert b"has ended: killed" in body

    (tmp_path / "again").mkdir()
    run(main())


@pytest.mark.attack("hostile answers")
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("status", [200, 299, 306, 418, 420, 430, 451, 499, 509, 520, 599, 600, 799, 999])
def test_any_status_of_three_digits_is_relayed(tmp_path: Path, status: int, whole: bool) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 %d Its Own Phrase\r\n" % status)
        if whole:
            writer.write(b"content-length: 2\r\n\r\nok")
        else:
            writer.write(b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")

    async def main() -> None:
        async with between(tmp_path, talk) as way:
            way.send("GET /tools HTTP/1.1")
            head = await head_of(way.reader)
            assert head.startswith(b"HTTP/1.1 %d " % status)
            body = b"2\r\nok\r\n0\r\n\r\n" if b"chunked" in head else b"ok"
            assert await way.reader.readexactly(len(body)) == body

    run(main())


@pytest.mark.attack("hostile answers")
@pytest.mark.parametrize("what", [*ENDLESS, *NOT_HTTP])
def test_a_hostile_response_ends_at_the_gateway(tmp_path: Path, what: str) -> None:
    """The caller gets an error about the instance, or its connection ends in the middle."""
    sent = [0]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        with contextlib.suppress(ConnectionError):
            await play({**ENDLESS, **NOT_HTTP}[what], writer, sent)

    async def main() -> None:
        async with between(tmp_path, talk) as way:
            way.send("GET /tools HTTP/1.1")
            head = await head_of(way.reader)
            if b" 502 " not in head.split(b"\r\n")[0]:  # the head of the response was valid, the rest is not
                assert b"chunked" in head
                assert not (await way.reader.read()).endswith(b"0\r\n\r\n")

    run(main())
    assert sent[0] < 8 * 1024 * 1024


def test_an_event_stream_through_the_gateway_has_no_end_in_bytes(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(CHUNKED)
        for _ in range(2000):
            writer.write(b"9\r\ndata: 1\n\n\r\n" * 100)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def main() -> None:
        async with between(tmp_path, talk) as way:
            way.send("GET /mcp HTTP/1.1")
            await head_of(way.reader)
            size = 0
            while line := await way.reader.readline():
                size += len(await way.reader.readexactly(int(line, 16)))
                await way.reader.readline()
                if line == b"0\r\n":
                    break
            assert size == 9 * 200_000

    run(main())


@pytest.mark.attack("hostile answers")
def test_a_replicas_health_check_cannot_fill_the_memory(tmp_path: Path) -> None:
    sent = [0]

    def endless() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while True:
            yield b"x" * 8192

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        with contextlib.suppress(ConnectionError):
            await play(endless, writer, sent)
        writer.close()

    async def main() -> None:
        async with await asyncio.start_unix_server(serve, str(tmp_path / "r.sock")):
            ref = SandboxRef("r", f"unix:{tmp_path / 'r.sock'}", "t")
            record = SimpleNamespace(ref=ref, status=EnvStatus.RUNNING)
            assert "over the limit of 65536 bytes" in await find_health_problem(record)  # type: ignore[arg-type]
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0)

    run(main())
    assert sent[0] < 8 * 1024 * 1024
