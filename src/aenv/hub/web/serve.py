"""The hub's HTTP server, behind ``aenv hub serve``."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aenv.errors import UsageError
from aenv.http.server import HttpServer
from aenv.hub.access.hub_tokens import HubTokens
from aenv.hub.access.storage_quota import DEFAULT
from aenv.hub.embedded import open_embedded
from aenv.hub.open_hub import HubLocation
from aenv.hub.web.app import HubApp
from aenv.isolation.kernel.linux import peer_user
from aenv.runtime.serve import is_loopback
from aenv.schema import paths

MAX_BODY = 24 * 1024 * 1024
"""Bytes: a manifest of 16 MiB and the version's details. A blob has at most 8 MiB."""
GRACE = 10.0


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Options of a hub server."""

    location: HubLocation
    host: str = "127.0.0.1"
    port: int = paths.HUB_PORT
    uds: str | None = None
    auth: bool | None = None
    """Require tokens; None: only if other machines can reach the server."""
    quota: int = DEFAULT
    """Bytes that a user may occupy; 0: no limit."""

    @property
    def open_to_others(self) -> bool:
        """Return whether other machines can reach the server."""
        return self.uds is None and not is_loopback(self.host)

    @property
    def with_auth(self) -> bool:
        """Return whether callers need a token."""
        return self.open_to_others if self.auth is None else self.auth


@dataclass(frozen=True, slots=True)
class HubReady:
    """State of a server that accepts connections."""

    url: str
    auth: bool
    first_token: str | None
    """Admin token of a hub that never had one; it can be shown only now."""


def serve(options: HubOptions, on_ready: Callable[[HubReady], None]) -> int:
    """Serve until SIGTERM or SIGINT; return the process's exit code."""
    return asyncio.run(_serve(options, on_ready))


async def _serve(options: HubOptions, on_ready: Callable[[HubReady], None]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_embedded(options.location, options.quota) as catalog:
        app = HubApp(catalog, auth=options.with_auth, only_loopback=options.uds is None and not options.open_to_others)
        server = HttpServer(app, max_body=MAX_BODY, admit=_same_user if options.uds and not options.with_auth else None)
        url = await _listen(server, options)
        first = await HubTokens(catalog.store).first() if options.with_auth else None
        on_ready(HubReady(url, options.with_auth, first))
        await stop.wait()
        await server.close(GRACE)
        if options.uds:
            Path(options.uds).unlink(missing_ok=True)
    return 0


async def _listen(server: HttpServer, options: HubOptions) -> str:
    """Bind the server and return its URL."""
    try:
        return await server.open(options.host, options.port, options.uds)
    except OSError as error:
        where = options.uds or f"{options.host}:{options.port}"
        raise UsageError(
            f"cannot listen on {where}: {error.strerror or error}", {"hint": "Choose another port with --port."}
        ) from error


def _same_user(connection: socket.socket) -> bool:
    return peer_user(connection) in (os.geteuid(), 0)
