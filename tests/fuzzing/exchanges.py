"""Targets: whole exchanges. Requests that two parsers may read in two ways, and a gateway between hostile answers and
an honest caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from aenv.http.messages import Request, Response, Stream
from aenv.http.server import HttpServer
from aenv.platform.gateway import gateway
from tests.fuzzing import messages
from tests.fuzzing.readers import Target
from tests.fuzzing.servers import GOOD, said, watched
from tests.platform.between import between

REFUSALS = (400, 408, 413, 431)


def http_messages(data: st.DataObject) -> None:
    """No answer is a server's error, none follows a refusal, and a trailer is never a header."""
    pieces = data.draw(messages.requests())
    prompt = data.draw(st.booleans())

    async def handler(request: Request) -> Response | Stream:
        assert b"x-late" not in [name for name, _ in request.headers]
        if request.stream is not None:
            return Response(200, b"%d" % sum([len(part) async for part in request.stream]))
        return Stream(_stream) if request.path == "/stream" else Response(200, b"%d" % len(request.body))

    async def work() -> None:
        options: dict[str, Any] = {"prompt": lambda request: True} if prompt else {"stream_over": 1000}
        server = HttpServer(handler, max_body=60_000, **options)
        found = _statuses(await said(server, pieces))
        assert not [status for status in found if status >= 500], found
        refused = [at for at, status in enumerate(found) if status in REFUSALS]
        assert not refused or refused == [len(found) - 1], f"answers after a refusal: {found}"
        assert _statuses(await said(server, [GOOD])) == [200]
        await server.close(1.0)

    watched(work)


async def _stream(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"part", "more_body": True})
    await send({"type": "http.response.body", "body": b"end"})


def _statuses(came: bytes) -> list[int]:
    """Of the answers in what came back; their bodies hold no other first line."""
    first, *rest = came.split(b"HTTP/1.1 ")
    assert not first, came[:200]
    return [int(part[:3]) for part in rest]


def gateway_answers(data: st.DataObject) -> None:
    """The caller is given what the instance said, or a 502, and the next call works."""
    pieces = data.draw(messages.answers())
    upgrade = data.draw(st.booleans())
    honest = [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"]
    scripts = [honest, pieces]

    async def instance(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in scripts.pop():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)

    async def work() -> None:
        with tempfile.TemporaryDirectory(prefix="aenv-fuzz-") as place:
            async with between(Path(place), instance) as way:
                asked = "connection: upgrade\r\nupgrade: websocket" if upgrade else "connection: close"
                way.send(f"GET /tools HTTP/1.1\r\n{asked}")
                came = b""
                with contextlib.suppress(ConnectionError):
                    came = await way.reader.read(65536)
                assert came[:9] in (b"", b"HTTP/1.1 "), came[:200]
                status = came[9:12]
                assert not came or status == b"502" or status in b"".join(pieces), came[:200]
                scripts[:] = [honest]
                way.reader, way.writer = await asyncio.open_unix_connection(f"{place}/o.sock")
                way.send("GET /tools HTTP/1.1\r\nconnection: close")
                assert (await way.reader.read()).endswith(b"\r\n\r\nok")
                way.writer.close()
                with contextlib.suppress(ConnectionError):
                    await way.writer.wait_closed()

    looks, gateway.CHECKS = gateway.CHECKS, 1  # the instance is never over, and half a second is long here
    try:
        watched(work)
    finally:
        gateway.CHECKS = looks


TARGETS: dict[str, Target] = {"HTTP messages": http_messages, "gateway": gateway_answers}
