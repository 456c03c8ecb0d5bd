"""Serving for nobody, so that no instance does anything for the first time.

A fork shares its parent's memory until it writes to it, and Python writes wherever it goes: it counts references, and
notes in the code itself what it has seen there. What has been rehearsed often enough is not written to any more, so
an instance copies fewer pages, and is ready sooner.
"""

from __future__ import annotations

import asyncio
import re
import socket
from functools import cache
from pathlib import Path

from aenv.authoring.call import Call
from aenv.authoring.declarations import fresh_registry, register_tool
from aenv.http.server import HttpServer
from aenv.runtime.endpoints import EndpointCatalog
from aenv.runtime.serve import EnvServer, ServeOptions

TIMES = 12
"""CPython specialises a function when it is called for the eighth time."""
TOOLS = ("GET /tools", b"")
CALL = ("POST /tools/rehearsed", b'{"text": "x"}')
MCP = (
    "POST /mcp",
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"w","version":"1"}}}',
)
Asked = tuple[str, bytes]


def for_all() -> None:
    """What serving any environment needs."""
    for _ in range(TIMES):
        once()


def once() -> None:
    """A call to an environment that does nothing."""
    asyncio.run(_serve(_stand_in(), [CALL]))


def for_mcp() -> None:
    """What MCP clients need besides."""
    asyncio.run(_serve(_stand_in(), [MCP]))


def of(catalog: EndpointCatalog) -> None:
    """What serving this one needs, short of calling the author's functions."""
    for _ in range(TIMES):
        asyncio.run(_serve(catalog, [TOOLS]))


async def before_the_first_call(server: HttpServer, catalog: EndpointCatalog, token: str) -> None:
    """In an instance that nobody waits for yet: write now what the first call would."""
    ours, theirs = socket.socketpair()
    server.adopt(theirs)
    await _ask(ours, [TOOLS], token)
    await catalog.workers.run(int, Call())
    await _serve(_stand_in(), [CALL])


@cache
def _stand_in() -> EndpointCatalog:
    """An environment that does nothing."""
    with fresh_registry() as registry:
        register_tool(name="rehearsed")(lambda text="": {"text": text})
        return EndpointCatalog(registry)


async def _serve(catalog: EndpointCatalog, requests: list[Asked]) -> None:
    """Answer these requests, on a socket of which nobody knows the name."""
    service = EnvServer(ServeOptions(Path()), catalog)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # the kernel picks one
    service.server.accept_on(listener)
    try:
        ours = socket.socket(socket.AF_UNIX)
        ours.connect(listener.getsockname())
        await _ask(ours, requests)
    finally:
        await service.close(0.1)


async def _ask(connection: socket.socket, requests: list[Asked], token: str = "") -> None:
    """Send them one by one, and forget the answers."""
    reader, writer = await asyncio.open_connection(sock=connection)
    for head, body in requests:
        writer.write(
            f"{head} HTTP/1.1\r\nhost: localhost\r\naccept: application/json, text/event-stream\r\n"
            f"authorization: Bearer {token}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        answer = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.findall(rb"content-length: (\d+)", answer)[0]))
    writer.close()
    await writer.wait_closed()
