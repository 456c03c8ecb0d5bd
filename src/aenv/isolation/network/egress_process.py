"""Start and control the egress proxy process (`egress_proxy`), one per engine.

It starts with the first sandbox that has an egress endpoint, and ends with the engine. If it dies, a new process takes
over all endpoints: the engine keeps their listening sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable

from aenv.isolation.network.egress_proxy import MESSAGE
from aenv.tracing.logging import getLogger

log = getLogger("egress")

RESTART_SECONDS = 1.0
"""Seconds before a proxy process that has died is replaced, so that one that dies at once does not cause a loop."""


class EgressEndpoint:
    """Egress proxy endpoint of one sandbox, from before its network exists until the sandbox is gone."""

    def __init__(self, name: str, allow: tuple[str, ...], egress: EgressProcess) -> None:
        self.id = name
        self.allow = allow
        self.listener = -1
        self._egress = egress
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._received: asyncio.Future[int] | None = None

    @property
    def channel(self) -> int:
        """File descriptor that the sandbox sends its listening socket through."""
        return self._theirs.fileno()

    async def open(self) -> None:
        """Wait for the sandbox's listening socket and have it served; return without one if the sandbox fails."""
        self._theirs.close()
        loop = asyncio.get_running_loop()
        self._received = loop.create_future()
        loop.add_reader(self._ours, self._read)
        try:
            self.listener = await self._received
        finally:
            loop.remove_reader(self._ours)
            self._ours.close()
        if self.listener >= 0:
            await self._egress.add(self)

    def adopt(self, listener: int) -> None:
        """Use the listening socket of a sandbox that already runs."""
        self.listener = listener
        self._theirs.close()
        self._ours.close()

    def close(self) -> None:
        """Close the endpoint and all connections through it."""
        self._theirs.close()
        if self._received is None:
            self._ours.close()
        elif not self._received.done():
            self._received.set_result(-1)
        self._egress.remove(self)
        if self.listener >= 0:
            os.close(self.listener)
            self.listener = -1

    def _read(self) -> None:
        assert self._received is not None
        try:
            _, fds, _, _ = socket.recv_fds(self._ours, 16, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            fds = []
        if self._received.done():
            for fd in fds:
                os.close(fd)
        else:
            self._received.set_result(fds[0] if fds else -1)


class EgressProcess:
    """Handle of the egress proxy process; opens and closes endpoints.

    ``on_refused`` is called with the sandbox's name and a log line for each refused connection.
    """

    def __init__(self, on_refused: Callable[[str, str], None]) -> None:
        self._on_refused = on_refused
        self._endpoints: dict[str, EgressEndpoint] = {}
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._restarting: asyncio.Task[None] | None = None
        self._closed = False

    def endpoint(self, name: str, allow: tuple[str, ...]) -> EgressEndpoint:
        """Create the endpoint of a sandbox that is about to start. The caller must close it in any case."""
        return EgressEndpoint(name, allow, self)

    async def adopt(self, name: str, allow: tuple[str, ...], listener: int) -> EgressEndpoint:
        """Create the endpoint of a sandbox that an earlier engine has handed over."""
        endpoint = EgressEndpoint(name, allow, self)
        endpoint.adopt(listener)
        await self.add(endpoint)
        return endpoint

    async def add(self, endpoint: EgressEndpoint) -> None:
        """Serve an endpoint from now on."""
        self._endpoints[endpoint.id] = endpoint
        await self._start()
        await self._send({"op": "open", "id": endpoint.id, "allow": endpoint.allow}, [endpoint.listener])

    def remove(self, endpoint: EgressEndpoint) -> None:
        """Stop serving an endpoint."""
        if self._endpoints.pop(endpoint.id, None) is not None:
            self._send_close(endpoint.id)

    def _send_close(self, name: str) -> None:
        if self._control is None or name in self._endpoints:
            return
        try:
            self._control.send(json.dumps({"op": "close", "id": name}).encode())
        except BlockingIOError:
            asyncio.get_running_loop().call_later(0.05, self._send_close, name)
        except OSError:
            return  # the proxy process has died, and its connections with it

    async def end(self) -> None:
        """Close all endpoints and stop the process."""
        self._closed = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        self._close_control()
        for endpoint in list(self._endpoints.values()):
            endpoint.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _start(self) -> None:
        async with self._starting:
            if self._control is not None or self._closed:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "aenv.isolation.network.egress_proxy", str(theirs.fileno()),
                    pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, cwd="/",
                )  # fmt: skip
            self._control = ours
            asyncio.get_running_loop().add_reader(ours, self._read)

    async def _send(self, message: dict[str, object], fds: list[int]) -> None:
        data = json.dumps(message).encode()
        while self._control is not None and not self._closed:
            try:
                socket.send_fds(self._control, [data], fds)
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError:
                return  # the process has died; `_restart` sends all endpoints to the next one
            else:
                return

    def _read(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            message = json.loads(data)
            self._on_refused(message["id"], message["text"])
            return
        self._close_control()
        if self._endpoints and not self._closed:
            log.warning("the egress proxy process has ended; starting another")
            self._restarting = asyncio.create_task(self._restart())

    def _close_control(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None

    async def _restart(self) -> None:
        if self._process is not None:
            await self._process.wait()
        await asyncio.sleep(RESTART_SECONDS)
        await self._start()
        for endpoint in list(self._endpoints.values()):
            await self._send({"op": "open", "id": endpoint.id, "allow": endpoint.allow}, [endpoint.listener])
