"""Rehearse serving before instances are forked, so that no instance does anything for the first time.

A fork shares its parent's memory until it writes to it, and Python writes wherever it goes: it counts references, and
specialises bytecode in place. Code that has been rehearsed often enough is not written to any more, so an instance
copies fewer pages, and is ready sooner.
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
from aenv.runtime.calls.endpoints import EndpointCatalog
from aenv.runtime.serve import EnvServer, ServeOptions

TIMES = 12
"""Rounds of a rehearsal: CPython specialises a function at its eighth call."""
TOOLS = ("GET /tools", b"")
CALL = ("POST /tools/rehearsed", b'{"text": "x"}')
MCP = (
    "POST /mcp",
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"w","version":"1"}}}',
)
RehearsedRequest = tuple[str, bytes]
"""Method and path, and the body."""


def for_all() -> None:
    """Rehearse what serving any environment needs, in the zygote."""
    for _ in range(TIMES):
        once()


def once() -> None:
    """Rehearse one call of an environment that does nothing."""
    asyncio.run(_serve(_stand_in(), [CALL]))


def for_mcp() -> None:
    """Rehearse what MCP clients need, in the zygote."""
    asyncio.run(_serve(_stand_in(), [MCP]))


def of(catalog: EndpointCatalog) -> None:
    """Rehearse what serving this environment needs, in a preloaded parent, without calling its functions."""
    for _ in range(TIMES):
        asyncio.run(_serve(catalog, [TOOLS]))


async def before_the_first_call(server: HttpServer, catalog: EndpointCatalog, token: str) -> None:
    """Rehearse in a pooled instance: write to the pages now that its first call would write to."""
    ours, theirs = socket.socketpair()
    server.adopt(theirs)
    await _send(ours, [TOOLS], token)
    await catalog.workers.run(int, Call())
    await _serve(_stand_in(), [CALL])


@cache
def _stand_in() -> EndpointCatalog:
    """Return an environment that does nothing."""
    with fresh_registry() as registry:
        register_tool(name="rehearsed")(lambda text="": {"text": text})
        return EndpointCatalog(registry)


async def _serve(catalog: EndpointCatalog, requests: list[RehearsedRequest]) -> None:
    """Serve requests of our own."""
    service = EnvServer(ServeOptions(Path()), catalog)
    try:
        await _send(_connected(service), requests)
    finally:
        await service.close(0.1)


def _connected(service: EnvServer) -> socket.socket:
    """Return a connection to a server: by an autobound abstract socket, or a pair where a sandbox may make no other."""
    try:
        listener = socket.socket(socket.AF_UNIX)
    except OSError:
        ours, theirs = socket.socketpair()
        service.server.adopt(theirs)
        return ours
    listener.bind("")  # the kernel picks a name
    service.server.accept_on(listener)
    ours = socket.socket(socket.AF_UNIX)
    ours.connect(listener.getsockname())
    return ours


async def _send(connection: socket.socket, requests: list[RehearsedRequest], token: str = "") -> None:
    """Send requests one by one, and drop the answers."""
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
