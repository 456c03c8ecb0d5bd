"""The runtime inside a forked sandbox: everything is imported already, the door is locked, the socket listens."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aenv.core.call import Call
from aenv.core.declarations import fresh_registry, register_tool
from aenv.core.logging import setup_logging
from aenv.errors import AEnvError
from aenv.runtime.catalog import Catalog
from aenv.runtime.http import HttpServer
from aenv.runtime.loader import load
from aenv.runtime.orphans import Orphans
from aenv.runtime.serve import ServeOptions, open_server, serve_until_stopped

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


Report = Callable[[dict[str, Any]], None]
Serve = Callable[[socket.socket, dict[str, Any], Report], int]


def serve(listener: socket.socket, parameters: dict[str, Any], report: Report) -> int:
    """Load the author's code with these parameters, say whether it worked, serve until the end."""
    _reseed()
    orphans = Orphans()
    orphans.watch()
    catalog = _load(parameters, report)
    return _serve(catalog, orphans, listener, parameters, report) if catalog is not None else 1


def prepare(parameters: dict[str, Any], report: Report) -> Serve | None:
    """Load the author's code with these parameters. What comes back serves it, in any fork of this process."""
    orphans = Orphans()
    orphans.watch()
    catalog = _load(parameters, report)
    if catalog is None:
        return None
    asyncio.run(_rehearse(catalog, [("GET /tools", b"")]))

    def resume(listener: socket.socket, own: dict[str, Any], report: Report) -> int:
        os.chdir(own["directory"])
        _reseed()
        return _serve(catalog, orphans, listener, own, report)

    return resume


def _load(parameters: dict[str, Any], report: Report) -> Catalog | None:
    _settle_in(parameters)
    try:
        return Catalog(load(Path(parameters["path"])))
    except AEnvError as error:
        report({"error": error.message, "code": error.code})
        return None


def _serve(
    catalog: Catalog, orphans: Orphans, listener: socket.socket, parameters: dict[str, Any], report: Report
) -> int:
    path, token = Path(parameters["path"]), parameters["token"]
    options = ServeOptions(path, name=parameters["name"], token=token, sandboxed=True)

    spare = parameters["spare"]
    ready = {"ready": True, "healthy": not catalog.health}

    async def rehearse(server: HttpServer) -> None:
        orphans.reap_from_now_on()
        if spare:
            await _ask(server, [("GET /tools", b"")], token)
        await catalog.workers.run(int, Call())
        if spare:  # nobody has asked for it yet, so there was time
            report(ready)

    if not spare:
        report(ready)  # who connects now waits in the listener's queue, for less time than it takes to come here
    return asyncio.run(serve_until_stopped(options, catalog, listener, rehearse))


def _settle_in(parameters: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update({"PATH": PATH, "HOME": "/home/env", "USER": "env", "LANG": "C.UTF-8", "TMPDIR": "/tmp"})
    os.environ.update(parameters["variables"])
    sys.argv = [parameters["path"], *parameters["arguments"]]
    os.chdir(parameters["directory"])
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    setup_logging(logging.StreamHandler(sys.stderr), "INFO")


def _reseed() -> None:
    """Forked from one parent, every sandbox would otherwise draw the same numbers."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))


def warm() -> None:
    """Import and use once all that serving needs, so that no sandbox does it for the first time."""
    with fresh_registry() as registry:
        register_tool(name="warm")(lambda text="": {"text": text})
        asyncio.run(_rehearse(Catalog(registry), _EVERY_PATH))


_EVERY_PATH = [
    ("POST /tools/warm", b'{"text": "x"}'),
    ("POST /mcp", b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
     b'"capabilities":{},"clientInfo":{"name":"w","version":"1"}}}'),
]  # fmt: skip


async def _rehearse(catalog: Catalog, requests: list[tuple[str, bytes]]) -> None:
    """These requests, on a server that nobody else can reach."""
    server, mcp = await open_server(ServeOptions(Path()), catalog)
    try:
        await _ask(server, requests)
    finally:
        await server.close(0.1)
        await mcp.close()
        catalog.workers.close()


async def _ask(server: HttpServer, requests: list[tuple[str, bytes]], token: str = "") -> None:
    """Have the server answer them, and forget the answers."""
    ours, theirs = socket.socketpair()
    await server.adopt(theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
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
