"""The runtime inside a forked sandbox: everything is imported already, the door is locked, the socket listens."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aenv.core.declarations import fresh_registry, register_tool
from aenv.core.logging import setup_logging
from aenv.errors import AEnvError
from aenv.runtime.catalog import Catalog
from aenv.runtime.loader import load
from aenv.runtime.orphans import Orphans
from aenv.runtime.serve import ServeOptions, open_server, serve_until_stopped

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def serve(listener: socket.socket, parameters: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> int:
    """Load the author's code with these parameters, say whether it worked, serve until the end."""
    _settle_in(parameters)
    orphans = Orphans()
    orphans.watch()
    path = Path(parameters["path"])
    try:
        catalog = Catalog(load(path))
    except AEnvError as error:
        report({"error": error.message, "code": error.code})
        return error.exit_code
    options = ServeOptions(path, name=parameters["name"], token=parameters["token"], sandboxed=True)

    def ready() -> None:
        orphans.reap_from_now_on()
        report({"ready": True})

    return asyncio.run(serve_until_stopped(options, catalog, listener, ready))


def _settle_in(parameters: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update({"PATH": PATH, "HOME": "/home/env", "USER": "env", "LANG": "C.UTF-8", "TMPDIR": "/tmp"})
    os.environ.update(parameters["variables"])
    sys.argv = [parameters["path"], *parameters["arguments"]]
    os.chdir(parameters["directory"])
    random.seed()  # forked from one parent, every sandbox would otherwise draw the same numbers
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    setup_logging(logging.StreamHandler(sys.stderr), "INFO")


def warm() -> None:
    """Import and use once all that serving needs, so that no sandbox does it for the first time."""
    with fresh_registry() as registry:
        register_tool(name="warm")(lambda text="": {"text": text})
        asyncio.run(_rehearse(Catalog(registry)))


async def _rehearse(catalog: Catalog) -> None:
    """One call over each path, on a server that nobody else can reach."""
    ours, theirs = socket.socketpair()
    server, mcp = await open_server(ServeOptions(Path()), catalog)
    try:
        await server.adopt(theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        await mcp.ready()
        for head, body in (
            ("POST /tools/warm", b'{"text": "x"}'),
            ("POST /mcp", b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
             b'"capabilities":{},"clientInfo":{"name":"w","version":"1"}}}'),
        ):  # fmt: skip
            writer.write(
                f"{head} HTTP/1.1\r\nhost: localhost\r\naccept: application/json, text/event-stream\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await reader.readuntil(b"}}")
        writer.close()
    finally:
        await server.close(0.1)
        await mcp.close()
        catalog.workers.close()
