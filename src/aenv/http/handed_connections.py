"""Connections that a server has opened to its client, for clients in this process.

An instance has no way to connect to its platform, so the platform connects to the instance and hands the connection
over (`aenv.runtime.sandbox_routes`). A client takes such a connection where it would otherwise connect to a socket. It
exists in this process alone: programs that a tool starts do not inherit it, and there is no file to connect to.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections import deque
from concurrent.futures import Future

PATH = "/aenv-platform"
"""Path of a unix socket that stands for these connections. There is no such file."""


class HandedConnections:
    """Connections that are ready to be used, each once. Clients may take them in any event loop and thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: deque[socket.socket] = deque()
        self._waiting: deque[Future[socket.socket]] = deque()

    def add(self, connection: socket.socket) -> None:
        """Give a connection to a client that waits for one, else keep it."""
        with self._lock:
            while self._waiting:
                client = self._waiting.popleft()
                if client.set_running_or_notify_cancel():
                    client.set_result(connection)
                    return
            self._ready.append(connection)

    async def take(self) -> socket.socket:
        """Return a connection, waiting until there is one."""
        with self._lock:
            while self._ready:
                connection = self._ready.popleft()
                if _is_open(connection):
                    return connection
                connection.close()
            client: Future[socket.socket] = Future()
            self._waiting.append(client)
        try:
            return await asyncio.wrap_future(client)
        except asyncio.CancelledError:
            if client.done() and not client.cancelled():
                self.add(client.result())
            raise

    def close(self) -> None:
        """Close the connections that no client has taken."""
        while self._ready:
            self._ready.popleft().close()


def _is_open(connection: socket.socket) -> bool:
    """Return whether the server still has the connection: it sends nothing before the first request."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


connections: HandedConnections | None = None
"""Handed connections of this process; None outside of an instance."""


def expect() -> None:
    """Let clients of `PATH` wait for connections. Called by the runtime of an instance."""
    global connections
    connections = HandedConnections()


def _close_in_fork() -> None:
    if connections is not None:
        connections.close()


os.register_at_fork(after_in_child=_close_in_fork)
