"""Serves the archives of projects to the pods that run them.

An environment without an image runs on a base image, and an init container fetches its project from here. Each pod has
a token of its own, which is valid while the pod starts.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv.engines.base import SandboxSpec
from aenv.engines.kubernetes.project_archives import ProjectArchives
from aenv.engines.project_archive import has_private
from aenv.errors import ConfigError, Unauthorized
from aenv.http.guard import bearer_token
from aenv.http.messages import Request, Response, Stream
from aenv.http.server import HttpServer

CHUNK = 1 << 20
_PATH = "/bundles/"


@dataclass(frozen=True, slots=True)
class ServedArchive:
    """An archive, and how a pod gets it."""

    url: str
    digest: str
    token: str
    has_private: bool


class BundleServer:
    """An HTTP server with one route, ``GET /bundles/DIGEST``."""

    def __init__(self, archives: ProjectArchives) -> None:
        self._archives = archives
        self._server = HttpServer(self._handle, max_body=0)
        self._url = ""
        self._tokens: dict[str, str] = {}
        """Digest that a pod may fetch, by its token."""

    async def open(self, address: str, port: int, *, everywhere: bool) -> int:
        """Listen, and return the port. ``everywhere``: on all addresses, and not only on the one that pods use."""
        host = ("::" if ":" in address else "0.0.0.0") if everywhere else address
        try:
            listening = await self._server.listen(host=host, port=port)
        except OSError as error:
            raise ConfigError(f"bundles for pods cannot be served at {address}, port {port}: {error}") from error
        bound = int(listening.sockets[0].getsockname()[1])
        self._url = f"http://{f'[{address}]' if ':' in address else address}:{bound}"
        return bound

    async def close(self) -> None:
        """Stop serving."""
        await self._server.close(0)

    async def serve(self, spec: SandboxSpec) -> ServedArchive:
        """Make the project's archive, if necessary, and return how a new pod gets it.

        Raises:
            LoadError: the project cannot be read.
        """
        digest = await self._archives.digest_of(spec, set(self._tokens.values()))
        token = secrets.token_urlsafe(24)
        self._tokens[token] = digest
        return ServedArchive(f"{self._url}{_PATH}{digest}", digest, token, has_private(spec))

    def revoke(self, token: str) -> None:
        """End the validity of a pod's token."""
        self._tokens.pop(token, None)

    async def _handle(self, request: Request) -> Response | Stream:
        digest = request.path.removeprefix(_PATH)
        try:
            given = bearer_token(request) or ""
        except Unauthorized:
            given = ""
        allowed = [held for token, held in self._tokens.items() if hmac.compare_digest(token, given)]
        if request.method != "GET" or allowed != [digest]:
            return Response(403, b'{"error": "this pod may not fetch that"}')
        return Stream(_reading(self._archives.file(digest)))


def address_towards(host: str, port: int) -> str:
    """Return the address of this machine from which packets to ``host`` leave. Nothing is sent."""
    for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    raise OSError(f"{host} has no address")


def _reading(path: Path) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            headers = [(b"content-type", b"application/gzip"), (b"content-length", str(size).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while data := await asyncio.to_thread(file.read, CHUNK):
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app
