"""Serves the archives of projects to the pods that run them.

An environment without an image runs on a base image, and an init container fetches its project from here. An archive
is made once per state of the project's files, and is removed when it has not been used by the last `MOST` others. Each
pod has a token of its own, which is valid while the pod starts.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import socket
import stat
import tarfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv.engines.base import SandboxSpec
from aenv.engines.project_archive import has_private, project_members, without_owner
from aenv.errors import ConfigError, LoadError, Unauthorized
from aenv.http.guard import bearer_token
from aenv.http.messages import Request, Response, Stream
from aenv.http.server import HttpServer

MOST = 64
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

    def __init__(self, folder: Path) -> None:
        """``folder``: for the archives; it need not exist yet."""
        self._folder = folder
        self._server = HttpServer(self._handle, max_body=0)
        self._url = ""
        self._archives: dict[str, str] = {}
        """Digest of the archive by the state of the project's files, least recently used first."""
        self._tokens: dict[str, str] = {}
        """Digest that a pod may fetch, by its token."""
        self._locks: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)

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
        """Stop serving, and remove all archives."""
        await self._server.close(0)
        for digest in self._archives.values():
            self._file(digest).unlink(missing_ok=True)
        self._archives.clear()
        if self._folder.is_dir():
            self._folder.rmdir()

    async def serve(self, spec: SandboxSpec) -> ServedArchive:
        """Make the project's archive, if necessary, and return how a new pod gets it.

        Raises:
            LoadError: the project cannot be read.
        """
        try:
            async with self._locks[spec.project]:
                state = await asyncio.to_thread(_state_of, spec)
                digest = self._archives.pop(state, "") or await asyncio.to_thread(self._write, spec)
                self._archives[state] = digest
        except OSError as error:
            raise LoadError(f"the project {spec.project} cannot be read: {error}") from error
        self._trim()
        token = secrets.token_urlsafe(24)
        self._tokens[token] = digest
        return ServedArchive(f"{self._url}{_PATH}{digest}", digest, token, has_private(spec))

    def revoke(self, token: str) -> None:
        """End the validity of a pod's token."""
        self._tokens.pop(token, None)

    def _trim(self) -> None:
        wanted = set(self._tokens.values())
        for state, digest in list(self._archives.items())[:-MOST]:
            if digest not in wanted:
                del self._archives[state]
                if digest not in self._archives.values():
                    self._file(digest).unlink(missing_ok=True)

    def _file(self, digest: str) -> Path:
        return self._folder / f"{digest}.tar.gz"

    def _write(self, spec: SandboxSpec) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        made = self._folder / f"{secrets.token_hex(8)}.part"
        try:
            with tarfile.open(made, "w:gz", compresslevel=1) as archive:
                for path in project_members(spec):
                    archive.add(path, path.relative_to(spec.project).as_posix(), recursive=False, filter=without_owner)
            with made.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            made.replace(self._file(digest))
        except BaseException:
            made.unlink(missing_ok=True)
            raise
        return digest

    async def _handle(self, request: Request) -> Response | Stream:
        digest = request.path.removeprefix(_PATH)
        try:
            given = bearer_token(request) or ""
        except Unauthorized:
            given = ""
        allowed = [held for token, held in self._tokens.items() if hmac.compare_digest(token, given)]
        if request.method != "GET" or allowed != [digest]:
            return Response(403, b'{"error": "this pod may not fetch that"}')
        return Stream(_reading(self._file(digest)))


def address_towards(host: str, port: int) -> str:
    """Return the address of this machine from which packets to ``host`` leave. Nothing is sent."""
    for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    raise OSError(f"{host} has no address")


def _state_of(spec: SandboxSpec) -> str:
    """Return a key of the project's files: the same as long as none is changed."""
    state = hashlib.sha256(str(spec.project).encode(errors="surrogateescape"))
    for path in project_members(spec):
        about = path.lstat()
        kind = stat.S_IFMT(about.st_mode)
        state.update(f"{path}\0{kind}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ino}\n".encode(errors="replace"))
    return state.hexdigest()


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
