"""A small HTTP/1.1 server: one parsed request in, one response out, or an ASGI application for streams.

It exists for two figures. A general-purpose ASGI server and framework spend more on a call than the call itself costs,
and they wake up ten times a second with nothing to do; a thousand idle instances must cost nothing. llhttp (through
httptools) does the parsing, asyncio does TLS. HTTP/2, static files and the rest are left to a proxy in front.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from aenv.http import unix_sockets
from aenv.http.connections import Connections, peer_key
from aenv.http.messages import Handler, Request
from aenv.http.server_connection import HttpServerConnection

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("aenv.http")

BACKLOG = 1024
HANDSHAKE_SECONDS = 15.0
_TCP_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
"""Accepted connections inherit these from the listening socket. With them the kernel detects within two minutes that a
peer's machine is gone."""


class HttpServer:
    """Serves one handler on any number of listening sockets."""

    def __init__(
        self,
        handler: Handler,
        *,
        max_body: int,
        admit: Callable[[socket.socket], bool] | None = None,
        prompt: Callable[[Request], bool] = lambda request: False,
        stream_over: int | None = None,
        unbounded: Callable[[Request], bool] | None = None,
        most: int | None = None,
        per_peer: int | None = None,
    ) -> None:
        """``most``, ``per_peer``: connection limits, see `Connections`."""
        self.handler = handler
        self.unbounded = unbounded
        """Decides from the head of a request whether its body may have any length. Such a body is streamed."""
        self.stream_over = stream_over
        """Stream bodies that are longer than this, or of unknown length, to the handler. None: never."""
        self.prompt = prompt
        """Tells whether the handler can often answer a request without waiting. It then runs outside of a task until it
        first waits, so it must not use ``asyncio.current_task()`` before."""
        self.admit = admit
        """Checks a new connection. A connection that it rejects is closed without a response."""
        self.max_body = max_body
        self.closing = False
        self.held = 0
        """Bytes held of incomplete bodies."""
        self.connections = Connections(most, per_peer)
        self._listeners: list[unix_sockets.Listener] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()
        self.connections.on_empty = self._quiet.set

    async def listen(
        self,
        *,
        host: str,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> Listening:
        """Accept connections on a TCP address."""
        sockets = await bind_addresses(host, port)
        for listener in sockets:
            listener.listen(BACKLOG)
        self._listeners += [_ServerListener(listener, self, tls) for listener in sockets]
        return Listening(sockets)

    async def open(self, host: str, port: int, uds: str | None) -> str:
        """Listen on a unix socket, if one is given, otherwise on a TCP address. Returns the URL."""
        if uds:
            self.listen_at(uds)
            return f"unix:{uds}"
        listener = await self.listen(host=host, port=port)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{listener.sockets[0].getsockname()[1]}"

    def listen_at(self, path: str) -> None:
        """Listen on a unix socket at that path, replacing a stale socket there."""
        self.accept_on(unix_sockets.bind_path(path))

    def accept_on(self, listener: socket.socket) -> None:
        """Listen on a unix socket that is bound already."""
        listener.listen(BACKLOG)  # repeat it if it listens already: SO_PEERCRED shows clients the last process that did
        self._listeners.append(_ServerListener(listener, self))

    def descriptors(self) -> set[int]:
        """Return the descriptors of its listeners and connections."""
        there = [each for each in self.connections if isinstance(each, HttpServerConnection)]
        sockets = [each.transport.get_extra_info("socket") or each.opening for each in there]
        return {*(each.fileno() for each in self._listeners), *(each.fileno() for each in sockets if each is not None)}

    def start_over(self, listener: socket.socket) -> None:
        """Serve on this listening socket and no other, in a fork, which has no connections yet."""
        for old in self._listeners:
            old.close()
        self._listeners.clear()
        for connection in list(self.connections):
            if isinstance(connection, HttpServerConnection):
                connection.drop()
        self.held = 0
        self.accept_on(listener)

    def adopt(self, connection: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve a connected socket."""
        connection.setblocking(False)
        protocol = HttpServerConnection(self)
        try:
            accepted = self.connections.add(protocol, peer_key(connection))
        except OSError:  # the peer is gone already
            accepted = False
        if not accepted:
            connection.close()
        elif tls is None:
            unix_sockets.UnixTransport(protocol.loop, connection, protocol).read()
        else:
            protocol.opening = connection
            task = protocol.loop.create_task(self._handshake(connection, protocol, tls))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, connection: socket.socket, protocol: HttpServerConnection, tls: ssl.SSLContext) -> None:
        """Do the TLS handshake. Until it is done, the connection counts as a silent one."""
        try:
            await protocol.loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:  # not TLS, an unsupported version, or too slow
            log.debug("a TLS handshake failed: %s", error)
        finally:
            if protocol.opening is not None:
                self.forget(protocol)

    async def close(self, grace: float) -> bool:
        """Stop accepting and wait up to ``grace`` seconds for open requests. Returns whether all finished."""
        self.closing = True
        for listener in self._listeners:
            listener.close()
        there = [connection for connection in self.connections if isinstance(connection, HttpServerConnection)]
        tasks = [connection.task for connection in there if connection.task is not None]
        tasks += self._handshakes
        for connection in there:
            connection.close_when_idle()
        finished = True
        if self.connections:
            self._quiet.clear()
            try:
                await asyncio.wait_for(self._quiet.wait(), grace)
            except TimeoutError:
                finished = False
        for left in self.connections:
            left.abort()
        for task in tasks:
            if task not in self._handshakes:  # handshakes end with their sockets
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        return finished

    def forget(self, connection: HttpServerConnection) -> None:
        """Remove a connection that is gone."""
        self.connections.forget(connection)


class Listening(NamedTuple):
    """The sockets that a server listens on."""

    sockets: list[socket.socket]


class _ServerListener(unix_sockets.Listener):
    """Passes accepted connections to the server."""

    def __init__(self, listener: socket.socket, server: HttpServer, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(listener, lambda: HttpServerConnection(server))
        self._server = server
        self._tls = tls

    def take(self, connection: socket.socket) -> None:
        self._server.adopt(connection, self._tls)


async def bind_addresses(host: str, port: int) -> list[socket.socket]:
    """Bind sockets for all addresses of a host name."""
    loop, bound = asyncio.get_running_loop(), []
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            bound.append(listener)
            for level, option, value in ((socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), *_TCP_OPTIONS):
                listener.setsockopt(level, option, value)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound
