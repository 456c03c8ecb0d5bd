"""Connections of instances to the platform, for instances whose config.json declares environments to open.

An instance has no network, so the platform connects: to the socket on which the instance is called, with the instance's
token. After the upgrade the roles are reversed, and the runtime of the instance sends requests (`NestedApp`). One
connection is always ready, and with its first request the next one is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aenv.client.backoff import backoff
from aenv.errors import AEnvError, NetworkError
from aenv.http.messages import Handler
from aenv.http.relay import Relay, UpgradedConnection
from aenv.http.server import HttpServer
from aenv.http.server_connection import HttpServerConnection
from aenv.http.url import ServerUrl
from aenv.platform.access.audit_log import AuditLog
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.app import takes_any_body
from aenv.platform.gateway.gateway import Gateway
from aenv.platform.instances.instance_record import InstanceRecord
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.nested.nested_app import NestedApp
from aenv.schema import paths
from aenv.tracing.logging import getLogger

log = getLogger("nested")

MAX_TUNNELS = 128
"""Connections of one instance: two for each environment that it may have open."""
MAX_BODY = 64 * 1024 * 1024
STREAM_OVER = 64 * 1024
"""Stream longer bodies, so that instances cannot make the platform hold them."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds before connecting again, where the last connection was not used."""
_HEAD = (
    b"GET %s HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %%s\r\nconnection: Upgrade\r\nupgrade: %s\r\n\r\n"
    % (paths.PLATFORM.encode(), paths.PLATFORM_PROTOCOL.encode())
)


class Tunnels:
    """The connections of all instances that may open environments."""

    def __init__(
        self,
        instances: Instances,
        gateway: Gateway,
        wrap: Callable[[Handler], Handler],
        *,
        refresh: Callable[[Caller], Awaitable[Caller]] | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """``wrap``: adds request ids, tracing and logging to a handler. The others are those of `NestedApp`."""
        self._instances = instances
        self._gateway = gateway
        self._wrap = wrap
        self._refresh = refresh
        self._audit = audit
        self._of: dict[str, InstanceTunnels] = {}
        instances.tunnels = self
        for record in instances.openers():  # adopted from the previous server
            self.begin(record)

    def begin(self, record: InstanceRecord) -> None:
        """Connect to an instance that runs."""
        app = NestedApp(self._instances, self._gateway, record, self._refresh, self._audit)
        tunnels = self._of[record.id] = InstanceTunnels(record, self._wrap(app), self._instances)
        tunnels.ensure_spare()

    def end(self, record: InstanceRecord) -> None:
        """Close the connections of an instance that has ended."""
        tunnels = self._of.pop(record.id, None)
        if tunnels is not None:
            tunnels.close()

    def close(self) -> None:
        """Close all connections."""
        for tunnels in self._of.values():
            tunnels.close()
        self._of.clear()


class InstanceTunnels:
    """The connections of one instance."""

    def __init__(self, record: InstanceRecord, handler: Handler, instances: Instances) -> None:
        self._record = record
        self._instances = instances
        self._server = _TunnelServer(handler, self)
        self._used: set[HttpServerConnection] = set()
        self._spare: _Tunnel | None = None
        self._dialing: asyncio.Task[None] | None = None
        self._unused = 0
        """Connections in a row that failed, or were closed before their first request."""
        self._closed = False

    def ensure_spare(self) -> None:
        """Open a connection, unless one is ready or there are too many."""
        if self._closed or self._spare is not None or self._dialing is not None or len(self._used) >= MAX_TUNNELS:
            return
        self._dialing = asyncio.create_task(self._dial())

    def mark_used(self, tunnel: _Tunnel) -> None:
        """Note the first request on a connection."""
        self._used.add(tunnel)
        if self._spare is tunnel:
            self._spare, self._unused = None, 0
        self.ensure_spare()

    def forget(self, tunnel: HttpServerConnection) -> None:
        """Note that a connection is closed."""
        self._used.discard(tunnel)
        if self._spare is tunnel:
            self._spare = None
            self._unused += 1
        self.ensure_spare()

    def close(self) -> None:
        """Close all connections. Requests in progress are cancelled."""
        self._closed = True
        if self._dialing is not None:
            self._dialing.cancel()
        for tunnel in [*self._used, *([self._spare] if self._spare is not None else [])]:
            tunnel.abort()

    async def _dial(self) -> None:
        try:
            while not self._closed:
                if self._unused:
                    await asyncio.sleep(backoff(self._unused, first=FIRST_PAUSE, longest=LONGEST_PAUSE))
                    await self._instances.check(self._record)
                try:
                    self._spare = await self._connect()
                except NetworkError:
                    self._unused += 1
                    continue
                if self._spare is not None:
                    self._spare.start()
                return
        except AEnvError as error:  # it has ended, or its server has no such route
            log.debug("%s gets no more connections: %s", self._record.id, error.message)
            self._closed = True
        finally:
            self._dialing = None
            if self._spare is None:
                self.ensure_spare()

    async def _connect(self) -> _Tunnel | None:
        """Connect; None if the server of the instance refuses."""
        ref = self._record.ref
        assert ref is not None
        relay = Relay(ServerUrl.parse(ref.data_url))
        try:
            switched = await relay.switch(_HEAD % ref.token.encode())
            if isinstance(switched, UpgradedConnection):
                return _Tunnel(self._server, self, *switched.stream.detach())
            switched.close()
        finally:
            relay.close()
        self._closed = True
        log.warning(
            "%s cannot open environments: its server takes no connections of the platform (HTTP %d)",
            self._record.id, switched.status,
        )  # fmt: skip
        return None


class _TunnelServer(HttpServer):
    """Serves the connections of one instance, without watching them: a spare one may be silent for long."""

    def __init__(self, handler: Handler, owner: InstanceTunnels) -> None:
        super().__init__(handler, max_body=MAX_BODY, stream_over=STREAM_OVER, unbounded=takes_any_body)
        self._owner = owner

    def forget(self, connection: HttpServerConnection) -> None:
        super().forget(connection)
        self._owner.forget(connection)


class _Tunnel(HttpServerConnection):
    """A connection to an instance, on which the instance sends requests."""

    def __init__(self, server: HttpServer, owner: InstanceTunnels, transport: asyncio.Transport, early: bytes) -> None:
        super().__init__(server)
        self._owner = owner
        self._early = early
        self._is_used = False
        transport.set_protocol(self)
        self.connection_made(transport)

    def start(self) -> None:
        """Answer the requests that have arrived already, and those that will."""
        early, self._early = self._early, b""
        if early:
            self.data_received(early)
        if self.transport.is_closing():
            self._owner.forget(self)
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if not self._is_used:
            self._is_used = True
            self._owner.mark_used(self)
        super().data_received(data)
