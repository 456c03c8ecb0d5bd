"""The server of a host pod: ``python3 -m aenv.engines.packed.host_server``.

It runs the native engine, and starts and stops sandboxes for one platform server. Each sandbox accepts calls at a port
of its own, so calls do not pass through this process. Projects arrive as archives, named by their digest, and are kept
for the next sandbox of the same environment.

On SIGTERM it takes no more sandboxes, and ends when those that it has are gone, or when no platform asks for changes
any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel
from pydantic import ValidationError as InvalidMessage
from pydantic_core import to_json

from aenv.engines.base import EngineOptions, Exit, SandboxRef, SandboxSpec
from aenv.engines.native.engine import NativeEngine
from aenv.engines.packed.host_memory import memory_used_and_limit
from aenv.engines.packed.host_messages import (
    CHANGES,
    PROJECTS,
    SANDBOXES,
    WAIT_SECONDS,
    EndedSandbox,
    HostChanges,
    StartedSandbox,
    StartSandbox,
)
from aenv.engines.packed.received_projects import ReceivedProjects
from aenv.errors import AEnvError, CapacityExhausted, InvalidArguments, NotFound, Unauthorized, problem
from aenv.http.guard import bearer_token
from aenv.http.messages import Request, Response
from aenv.http.server import HttpServer
from aenv.isolation.confined.level import Isolation
from aenv.schema import paths
from aenv.tracing.logging import getLogger

log = getLogger("packed")

MAX_BODY = 4 << 20
ABANDONED_SECONDS = 60.0
"""A host that is to end does not wait for sandboxes of a platform that has not asked for changes for this long."""


class HostedEngine(Protocol):
    """The engine of a host: what the native one offers."""

    isolation: ClassVar[Isolation]

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        """Start a sandbox like `Engine.start`; its address is a port of this machine."""

    async def until_ended(self, ref: SandboxRef) -> Exit:
        """Return how a sandbox ended, once it has."""

    async def stop(self, ref: SandboxRef) -> None:
        """Stop a sandbox like `Engine.stop`."""

    async def close(self) -> None:
        """Close the engine like `Engine.close`."""

    def log_since(self, ref: SandboxRef, position: int) -> tuple[str, int]:
        """Return new log text like `Engine.log_since`."""

    def usage(self, ref: SandboxRef) -> dict[str, Any]:
        """Return the usage of a sandbox like `Engine.usage`."""


class HostServer:
    """Starts, watches and stops sandboxes of one engine over HTTP."""

    def __init__(self, engine: HostedEngine, projects: ReceivedProjects, token: str) -> None:
        self._engine = engine
        self._projects = projects
        self._token = token
        self._server = HttpServer(self._answer, max_body=MAX_BODY, unbounded=_is_upload)
        self._starting: dict[str, asyncio.Task[StartedSandbox]] = {}
        """Starts by the sandbox's name; those that have finished, too, for as long as the sandbox is there."""
        self._refs: dict[str, SandboxRef] = {}
        self._project_of: dict[str, str] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._ended: list[EndedSandbox] = []
        self._dropped = 0
        """How many changes are no longer in ``_ended``: the platform has received them."""
        self._changed = asyncio.Event()
        self._asked = time.monotonic()
        self.draining = False

    async def open(self, host: str, port: int) -> str:
        """Listen; return the URL."""
        return await self._server.open(host, port, None)

    async def close(self) -> None:
        """Stop all sandboxes and the server."""
        for task in (*self._watching.values(), *self._starting.values()):
            task.cancel()
        await asyncio.gather(*self._watching.values(), *self._starting.values(), return_exceptions=True)
        await self._engine.close()
        await self._server.close(0)
        self._projects.close()

    def drain(self) -> None:
        """Take no more sandboxes."""
        self.draining = True
        self._changed.set()

    async def until_drained(self) -> None:
        """Return once there are no sandboxes, or nobody who could use them."""
        while self._starting and time.monotonic() - self._asked < ABANDONED_SECONDS:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 1.0)

    # --- requests

    async def _answer(self, request: Request) -> Response:
        if request.path == paths.HEALTH:
            return Response(200, b'{"status":"healthy"}')
        try:
            self._authorize(request)
            found = await self._handle(request)
        except AEnvError as error:
            return Response(error.status, to_json(problem(error), fallback=repr))
        except InvalidMessage as error:
            return Response(InvalidArguments.status, to_json(problem(InvalidArguments(str(error)))))
        return Response(200, found.model_dump_json().encode() if isinstance(found, BaseModel) else to_json(found))

    def _authorize(self, request: Request) -> None:
        given = bearer_token(request) or ""
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Unauthorized("this host serves only the platform that has made it")

    async def _handle(self, request: Request) -> BaseModel | dict[str, Any]:
        first, _, rest = request.path.removeprefix("/").partition("/")
        match request.method, f"/{first}":
            case "PUT", kind if kind == PROJECTS:
                return await self._receive(rest, request)
            case "POST", kind if kind == SANDBOXES and not rest:
                return await self._start(StartSandbox.model_validate_json(request.body))
            case "DELETE", kind if kind == SANDBOXES:
                return await self._stop(rest)
            case "GET", kind if kind == SANDBOXES:
                return self._about(rest, int(request.query.decode() or 0))
            case "GET", kind if kind == CHANGES:
                return await self._changes(int(rest or 0))
        raise NotFound(f"no route {request.method} {request.path}")

    async def _receive(self, digest: str, request: Request) -> dict[str, Any]:
        chunks = request.stream
        if chunks is not None:
            await self._projects.receive(digest, chunks)
        else:
            await self._projects.receive(digest, _whole(request.body))
        return {}

    async def _start(self, wanted: StartSandbox) -> StartedSandbox:
        found = self._starting.get(wanted.name)
        if found is None:
            if self.draining:
                raise CapacityExhausted("this host is about to end, and takes no more instances")
            found = asyncio.get_running_loop().create_task(self._start_once(wanted))
            self._starting[wanted.name] = found
        return await asyncio.shield(found)

    async def _start_once(self, wanted: StartSandbox) -> StartedSandbox:
        try:
            project = self._projects.use(wanted.project)
        except NotFound:
            self._starting.pop(wanted.name, None)
            raise
        try:
            # The clock that the spec was made by is another machine's, and the project is in another place.
            spec = replace(
                wanted.spec, project=project, code=project / wanted.code, requested_at=time.monotonic(), fetching={}
            )
            ref = await self._engine.start(spec)
        except BaseException as error:
            self._starting.pop(wanted.name, None)
            self._projects.release(wanted.project)
            if isinstance(error, AEnvError):
                shown = error.message.replace(f"{project}/", "./")
                raise type(error)(shown, details=error.details) from error
            raise
        self._refs[wanted.name], self._project_of[wanted.name] = ref, wanted.project
        self._watching[wanted.name] = asyncio.get_running_loop().create_task(self._watch(wanted.name, ref))
        port = int(ref.data_url.rpartition(":")[2])
        return StartedSandbox(port=port, token=ref.token, healthy=ref.healthy, isolation=self._engine.isolation)

    async def _watch(self, name: str, ref: SandboxRef) -> None:
        """Note the end of a sandbox that ends without being stopped."""
        how = await self._engine.until_ended(ref)
        self._ended.append(EndedSandbox(name=name, code=how.code, reason=how.reason, cause=how.cause))
        self._changed.set()

    async def _stop(self, name: str) -> dict[str, Any]:
        starting = self._starting.get(name)
        if starting is not None and not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
        watching = self._watching.pop(name, None)
        if watching is not None:
            watching.cancel()
        ref = self._refs.get(name)
        if ref is not None:
            await self._engine.stop(ref)
            if self._refs.pop(name, None) is not None:
                self._projects.release(self._project_of.pop(name))
        self._starting.pop(name, None)
        self._changed.set()
        return {}

    def _about(self, name: str, position: int) -> dict[str, Any]:
        ref = self._refs.get(name)
        if ref is None:
            raise NotFound(f"no sandbox {name}")
        text, end = self._engine.log_since(ref, position)
        return {"log": text, "position": end, "usage": self._engine.usage(ref)}

    async def _changes(self, after: int) -> HostChanges:
        """Wait for a change after that position, and return all of them. Those before it were received."""
        self._asked = time.monotonic()
        received = min(max(0, after - self._dropped), len(self._ended))
        del self._ended[:received]
        self._dropped += received
        if not self._ended:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), WAIT_SECONDS)
        used, limit = memory_used_and_limit()
        return HostChanges(
            position=self._dropped + len(self._ended), ended=list(self._ended), sandboxes=len(self._refs),
            memory=used, memory_limit=limit, draining=self.draining,
        )  # fmt: skip


def _is_upload(request: Request) -> bool:
    return request.method == "PUT" and request.path.startswith(f"{PROJECTS}/")


async def _whole(body: bytes) -> Any:
    yield body


async def main(folder: Path, token: str, options: EngineOptions) -> None:
    """Serve until SIGTERM, and then until there are no sandboxes."""
    engine = NativeEngine.create(folder / "engine", options)
    server = HostServer(engine, ReceivedProjects(folder / "projects"), token)
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    await server.open(options.listen, paths.DATA_PORT)
    try:
        await ending.wait()
        server.drain()
        await server.until_drained()
    finally:
        await server.close()
