"""MCP over stdin and stdout, for desktop hosts that start a server as a program.

Stdout carries protocol messages and nothing else. So both streams are taken away from the process before any code of an
environment is loaded: what that code and its programs print goes to stderr, and their stdin is empty.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from aenv.runtime.mcp_generations import ToolHandlers, build_server

if TYPE_CHECKING:
    from aenv.runtime.calls.endpoints import EndpointCatalog


@dataclass(frozen=True, slots=True)
class HostPipes:
    """The pipes to the MCP host."""

    stdin: TextIO
    stdout: TextIO

    @classmethod
    def take(cls) -> HostPipes:
        """Take stdin and stdout for the protocol; the rest of the process gets an empty stdin, and stderr as stdout."""
        sys.stdout.flush()
        incoming, outgoing = os.dup(0), os.dup(1)  # not inheritable
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        os.dup2(2, 1)
        # A host may send a byte that is not UTF-8; the message is then answered with an error.
        stdin = os.fdopen(incoming, "r", encoding="utf-8", errors="replace")
        return cls(stdin, os.fdopen(outgoing, "w", encoding="utf-8", newline="\n"))


def serve_stdio(catalog: EndpointCatalog, pipes: HostPipes, *, name: str, version: str) -> None:
    """Serve a loaded environment until the host closes stdin."""
    from aenv.runtime.mcp import McpEndpoint

    async def serve() -> None:
        endpoint = McpEndpoint(catalog, name=name, version=version, max_body=0)
        await serve_handlers(endpoint.handlers, pipes, name=name, version=version)

    try:
        asyncio.run(serve())
    finally:
        catalog.workers.close()


async def serve_handlers(handlers: ToolHandlers, pipes: HostPipes, *, name: str, version: str) -> None:
    """Serve MCP until the host closes stdin. A signal ends the process at once: a thread waits in a read of stdin."""
    import anyio
    from mcp.server.stdio import stdio_server

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    server = build_server(name, version, handlers)
    async with stdio_server(anyio.wrap_file(pipes.stdin), anyio.wrap_file(pipes.stdout)) as (read, write):
        await server.run(read, write, server.create_initialization_options())
