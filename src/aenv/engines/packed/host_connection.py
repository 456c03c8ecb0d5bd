"""A host pod, as the platform sees it: its load, its sandboxes, and the connection to its server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json

from aenv.engines.base import Exit, SandboxRef, SandboxSpec
from aenv.engines.packed.host_messages import (
    CHANGES,
    PROJECTS,
    SANDBOXES,
    WAIT_SECONDS,
    HostChanges,
    StartedSandbox,
    StartSandbox,
)
from aenv.errors import AEnvError, LoadError, NotFound, Unavailable, from_answer
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from aenv.tracing.logging import getLogger

log = getLogger("packed")

START_SECONDS = 300.0
REQUEST_SECONDS = 30.0
PAUSE_SECONDS = 0.5
"""Before the host is asked again, after it did not answer."""


class HostConnection:
    """Connection to a host pod. The pod is created before it has an address: `connect` is called then."""

    def __init__(self, name: str, token: str, on_change: Callable[[HostConnection], None]) -> None:
        self.name = name
        self._token = token
        self._on_change = on_change
        self._http: HttpClient | None = None
        self._address = ""
        self._following: asyncio.Task[None] | None = None
        self._projects: dict[str, asyncio.Future[None]] = {}
        self._reserved: dict[str, int] = {}
        """Bytes that each instance has reserved, by its name: those that are being created, too."""
        self._reserved_bytes = 0
        self._creating = 0
        self._used = 0.0
        self.draining = False
        self.lost: Exit | None = None
        """How the host ended, and all of its instances with it."""
        self.ended: dict[str, Exit] = {}
        """How instances have ended."""

    # --- its load

    @property
    def accepting(self) -> bool:
        """True while the host runs and takes instances."""
        return self._http is not None and self.lost is None and not self.draining

    @property
    def instances(self) -> int:
        """Instances on it, and those that are being created there."""
        return len(self._reserved)

    @property
    def creating(self) -> int:
        """Creates under way."""
        return self._creating

    @property
    def reserved(self) -> int:
        """Bytes that its instances have reserved."""
        return self._reserved_bytes

    @property
    def used(self) -> float:
        """Part of its memory limit that is in use, as last measured."""
        return self._used

    def is_warm(self, project: str) -> bool:
        """Return whether instances of this project have been created on the host."""
        return project in self._projects

    def reserve(self, name: str, memory: int) -> None:
        """Keep room for an instance, until `forget`."""
        self._reserved_bytes += memory - self._reserved.get(name, 0)
        self._reserved[name] = memory

    def forget(self, name: str) -> None:
        """Give the room of an instance back. Idempotent."""
        self._reserved_bytes -= self._reserved.pop(name, 0)
        self.ended.pop(name, None)

    def exit_of(self, name: str) -> Exit | None:
        """Return how an instance has ended; None while it is alive."""
        if self.lost is not None:
            return self.lost
        if name not in self._reserved:
            return Exit(-1, "it was stopped")
        return self.ended.get(name)

    # --- requests

    def connect(self, address: str, port: int) -> None:
        """Follow the host's changes from now on. ``address``: of the pod."""
        self._address = f"[{address}]" if ":" in address else address
        self._http = HttpClient(ServerUrl.parse(f"http://{self._address}:{port}"), token=self._token)
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def start(self, name: str, spec: SandboxSpec, digest: str, archive: Path) -> SandboxRef:
        """Start a sandbox; send the host its project first, if it has not got it.

        Raises:
            NetworkError: the host does not answer; the sandbox may be there.
            LoadError, Unavailable, ...: as `Engine.start`.
        """
        code = spec.code.relative_to(spec.project).as_posix()
        body = StartSandbox(name=name, project=digest, code=code, spec=spec).model_dump_json(
            exclude={"spec": {"fetching", "requested_at"}}
        )
        self._creating += 1
        try:
            await self._send_once(digest, archive)
            try:
                answer = await self._request("POST", SANDBOXES, body.encode(), START_SECONDS)
            except NotFound:  # it was not used for a while, and the host has removed it
                self._projects.pop(digest, None)
                await self._send_once(digest, archive)
                answer = await self._request("POST", SANDBOXES, body.encode(), START_SECONDS)
        except AEnvError as error:
            if isinstance(error, LoadError):
                raise type(error)(error.message.replace("./", f"{spec.project}/"), details=error.details) from error
            raise
        finally:
            self._creating -= 1
        made = StartedSandbox.model_validate(answer)
        return SandboxRef(name, f"http://{self._address}:{made.port}", made.token, made.healthy, made.isolation)

    async def stop(self, name: str) -> None:
        """Return when the sandbox is gone. Idempotent.

        Raises:
            NetworkError: the host does not answer.
        """
        await self._request("DELETE", f"{SANDBOXES}/{quote(name)}", None, REQUEST_SECONDS)

    async def about(self, name: str, position: int) -> tuple[str, int, dict[str, Any]]:
        """Return a sandbox's output after a position, the position after that, and its resource usage."""
        found = await self._request("GET", f"{SANDBOXES}/{quote(name)}?{position}", None, REQUEST_SECONDS)
        return str(found["log"]), int(found["position"]), dict(found["usage"])

    async def close(self) -> None:
        """Close the connection. The host goes on."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._http is not None:
            self._http.close()

    async def _send_once(self, digest: str, archive: Path) -> None:
        """Send the project's archive unless that was done, or is being done by another create."""
        sending = self._projects.get(digest)
        if sending is None:
            sending = self._projects[digest] = asyncio.ensure_future(self._send(digest, archive))
            sending.add_done_callback(lambda done: self._sent(digest, done))
        await asyncio.shield(sending)

    def _sent(self, digest: str, done: asyncio.Future[None]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._projects.get(digest) is done:
            del self._projects[digest]

    async def _send(self, digest: str, archive: Path) -> None:
        try:
            data = await asyncio.to_thread(archive.read_bytes)
        except OSError as error:  # many other projects have been requested in the meantime
            raise Unavailable(f"the project's archive cannot be read: {error}") from error
        await self._request("PUT", f"{PROJECTS}/{digest}", data, START_SECONDS)

    async def _follow(self) -> None:
        """Note what changes on the host, for as long as it is there."""
        position = 0
        while True:
            try:
                answer = await self._request("GET", f"{CHANGES}/{position}", None, WAIT_SECONDS + REQUEST_SECONDS)
            except AEnvError as error:
                log.debug("the host %s does not answer: %s", self.name, error.message)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            changes = HostChanges.model_validate(answer)
            position = changes.position
            for ended in changes.ended:
                if ended.name in self._reserved:
                    self.ended[ended.name] = ended.exit
            self._used = changes.memory / changes.memory_limit if changes.memory_limit else 0.0
            self.draining = self.draining or changes.draining
            self._on_change(self)

    async def _request(self, method: str, path: str, body: bytes | None, seconds: float) -> Any:
        assert self._http is not None
        answer = await self._http.request(method, path, body, timeout=seconds)
        try:
            content = from_json(answer.body)
        except ValueError:
            content = {}
        if answer.status >= 400:
            raise from_answer(answer.status, content if isinstance(content, dict) else {})
        return content
