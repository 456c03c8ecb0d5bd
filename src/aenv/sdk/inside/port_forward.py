"""Forward a TCP port of this machine to a port inside an instance."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import TYPE_CHECKING

from aenv.errors import AEnvError, InvalidUse
from aenv.http.raw_stream import RawStream, join

if TYPE_CHECKING:
    from aenv.sdk.instance_session import InstanceSession

log = logging.getLogger("aenv.environment")


class PortForward:
    """A listening port of this machine; returned by `Environment.forward`. ``async with`` opens and closes it."""

    def __init__(self, env: InstanceSession, port: int, local_port: int, host: str) -> None:
        self._env = env
        self._remote = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.host = host
        """Address of this machine that it listens on."""
        self.port = local_port
        """Port of this machine; known once it is open."""

    @property
    def url(self) -> str:
        """URL of the port, for programs that speak HTTP."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def __aenter__(self) -> PortForward:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Accepted(self._accept), self.host, self.port)
        except OSError as error:
            raise InvalidUse(f"cannot listen on {self.host}:{self.port}: {error.strerror or error}") from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _accept(self, stream: RawStream) -> None:
        task = asyncio.ensure_future(self._connect(stream))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, stream: RawStream) -> None:
        try:
            remote = await self._env._exchange(
                f"port {self._remote}", lambda client, seconds: client.open_port(self._remote), None
            )
            await join(stream, remote)
        except AEnvError as error:
            log.warning("port %d of the instance: %s", self._remote, error.message)
        finally:
            stream.close()


class _Accepted(RawStream):
    """A connection that was accepted on this machine."""

    def __init__(self, accept: object) -> None:
        super().__init__()
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._accept(self)  # type: ignore[operator]
