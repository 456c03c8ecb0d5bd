"""The data plane: authenticates requests to instances and forwards them.

Only the id of an instance decides where a request goes. Older clients name a URL in a header; its host is what the
platform gave them, an id and a secret, and any other host is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Iterable
from typing import Protocol
from urllib.parse import urlsplit

from pydantic_core import from_json

from aenv.errors import AEnvError, Forbidden, InstanceEnded, InstanceUnreachable, NotFound, Unauthorized
from aenv.http.client import ConnectFailed, ConnectionLost
from aenv.http.messages import Answer, Handler, Request
from aenv.http.page_sandbox import is_from_browser, isolated
from aenv.http.relay import Relay, RelayFailed
from aenv.http.reverse_proxy import HOP_BY_HOP, UPGRADES, forward, forwarded_head
from aenv.http.url import ServerUrl
from aenv.platform.access.platform_tokens import OWNER, Authenticator, Caller
from aenv.platform.gateway.origin_isolation import isolate_origin
from aenv.platform.gateway.ports import Port, Ports, port_of
from aenv.platform.instances.instance_record import InstanceRecord
from aenv.platform.instances.lifecycle import Instances
from aenv.schema import paths
from aenv.schema.instances import EnvStatus

INSTANCE, PROXY = paths.INSTANCE_HEADER.lower().encode(), paths.PROXY_HEADER.lower().encode()
PEER = paths.PEER_HEADER.encode()
CHECKS, CHECK_SECONDS = 25, 0.02
"""Checks whether an instance has ended after a failed connection, and the pause after each."""
_PREFIX, _SERVICE_PREFIX = paths.INSTANCE_PATH + "/", paths.SERVICE_PATH + "/"
_SIGNED = paths.PORT + "/"
_PREFIXES = (_PREFIX, _SERVICE_PREFIX, _SIGNED)
_NOT_FORWARDED = HOP_BY_HOP | {b"authorization", b"origin", b"cookie", INSTANCE, PROXY, PEER}
"""Hop-by-hop headers, and headers for the platform that the author's code must not see."""
_NOT_TO_PORTS = HOP_BY_HOP | {b"cookie", INSTANCE, PROXY, PEER}
"""The URL of a port needs no token of the platform, so `authorization` is for the server on that port."""
_PORT_HEAD = (
    b"GET " + paths.PORT.encode() + b"/%d HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %s\r\n"
    b"connection: Upgrade\r\nupgrade: tcp\r\n\r\n"
)


class OtherServer(Protocol):
    """Forwards requests for instances of other servers."""

    async def answer(self, name: str, request: Request, caller: Caller | None) -> Answer | None:
        """Return the response of the instance's server; None if it is this one or there is none."""


class Gateway:
    """Forwards requests to instances."""

    def __init__(
        self,
        instances: Instances,
        authenticator: Authenticator,
        peers: OtherServer | None = None,
        ports: Ports | None = None,
    ) -> None:
        self._instances = instances
        self._peers = peers
        self._authenticator = authenticator
        self._ports = ports
        self._relays: dict[str, dict[int, Relay]] = {}
        self.services: Handler | None = None
        """Handles requests for services."""
        instances.on_gone = self._close_relays

    @staticmethod
    def wants(request: Request) -> bool:
        """Return whether a request is for an instance and not for the platform."""
        return request.path.startswith(_PREFIXES) or bool(request.header(INSTANCE) or request.header(PROXY))

    async def __call__(self, request: Request) -> Answer:
        """Handle a request and return the instance's response."""
        if request.path.startswith(_SIGNED) and not (request.header(INSTANCE) and request.wants_upgrade_to(b"tcp")):
            return await self._signed(request)
        if self.services is not None and request.path.startswith(_SERVICE_PREFIX):
            return await self.services(request)
        found = await self._resolve(request)
        if not isinstance(found, tuple):
            return found
        record, target = found
        return await self.forward(record, request, target)

    async def forward(self, record: InstanceRecord, request: Request, target: bytes) -> Answer:
        """Forward a request to an instance that its sender may use.

        Raises:
            InstanceEnded: the instance is gone; nothing was sent.
            InstanceUnreachable: no connection, or it broke.
        """
        port = port_of(target)
        if port is not None and not request.wants_upgrade_to(b"tcp"):
            return await self._to_port(record, request, port, _NOT_FORWARDED)
        if record.status is not EnvStatus.RUNNING or record.ref is None:
            raise await self._not_running(record)
        own = ((b"host", b"localhost"), (b"authorization", b"Bearer " + record.ref.token.encode()))
        head = forwarded_head(request, target, own, _NOT_FORWARDED)
        answer = await self._forward(record, self._relay(record), head, request, _path_kind(target))
        return isolated(answer) if is_from_browser(request) else answer

    async def _signed(self, request: Request) -> Answer:
        """Handle a request to the signed URL of a port, which needs no token."""
        if self._ports is None:
            raise NotFound("this platform does not issue URLs of ports")
        name, port = self._ports.read(request)
        record = self._instances.peek(name)
        if record is None:
            answer = await self._from_peer(name, request, None)
            if answer is None:
                raise await self._instances.ended_error(name) or NotFound(f"no instance {name}")
            return answer
        return await self._to_port(record, request, port, _NOT_TO_PORTS)

    async def _to_port(self, record: InstanceRecord, request: Request, port: Port, without: frozenset[bytes]) -> Answer:
        if record.status is not EnvStatus.RUNNING or record.ref is None:
            raise await self._not_running(record)
        own = ((b"host", b"localhost:%d" % port.number),)
        head = forwarded_head(request, port.target, own, without)
        relay = self._relay(record, port.number)
        answer = await self._forward(record, relay, head, request, paths.PORT, upgrades=(b"websocket",))
        return isolate_origin(answer)

    async def _not_running(self, record: InstanceRecord) -> AEnvError:
        await self._instances.check(record)
        return InstanceUnreachable(f"instance {record.id} is {record.status}", details={"sent": False})

    async def _forward(
        self,
        record: InstanceRecord,
        relay: Relay,
        head: bytes,
        request: Request,
        kind: str,
        upgrades: Iterable[bytes] = UPGRADES,
    ) -> Answer:
        began = time.perf_counter()
        record.calls += 1
        try:
            answer = await forward(relay, head, request, upgrades)
        except RelayFailed as error:
            raise InstanceUnreachable(f"{record.id}: {_reason(error.message)}", details={"sent": False}) from None
        except ConnectFailed:
            await self._check_ended(record)
            raise InstanceUnreachable(f"{record.id} accepts no connection", details={"sent": False}) from None
        except ConnectionLost as error:
            raise await self._broken(record, error) from None
        metrics = self._instances.metrics
        metrics.count("mcp_requests_total", method=request.method, endpoint=kind, status=str(answer.status))
        metrics.observe("mcp_request_duration_ms", (time.perf_counter() - began) * 1000, endpoint=kind)
        return answer

    async def _broken(self, record: InstanceRecord, error: ConnectionLost) -> AEnvError:
        """Return the error for a connection that was lost after the request was sent: it may have been acted on."""
        try:
            await self._check_ended(record)
        except InstanceEnded as ended:
            return InstanceUnreachable(f"{ended.message}; the request may have been acted on", details={"sent": True})
        return InstanceUnreachable(error.message, details={"sent": True})

    async def _check_ended(self, record: InstanceRecord) -> None:
        """Check for a moment whether the instance has ended: the news may not have arrived yet.

        Raises:
            InstanceEnded: the instance has ended.
        """
        for _ in range(CHECKS):
            await self._instances.check(record)
            await asyncio.sleep(CHECK_SECONDS)

    def close(self) -> None:
        """Close all connections."""
        for name in list(self._relays):
            self._close_relays(name)

    def _relay(self, record: InstanceRecord, port: int = 0) -> Relay:
        """Return the relay to an instance's own server, or through it to a port in its network."""
        assert record.ref is not None
        own = self._relays.setdefault(record.id, {})
        relay = own.get(port)
        if relay is None:
            tunnel_request = _PORT_HEAD % (port, record.ref.token.encode()) if port else None
            relay = own[port] = Relay(ServerUrl.parse(record.ref.data_url), tunnel_request=tunnel_request)
        return relay

    def _close_relays(self, name: str) -> None:
        for relay in self._relays.pop(name, {}).values():
            relay.close()

    # --- resolving the instance and the caller

    async def _resolve(self, request: Request) -> tuple[InstanceRecord, bytes] | Answer:
        """Return the instance and the path in it, or the response of the server that runs it.

        Raises:
            InstanceEnded: it was deleted, ended, or was lost in a restart.
            Unauthorized, Forbidden: the caller may not use it, or it never existed.
        """
        named, target = self.named(request)
        if not target.startswith(b"/"):
            raise Forbidden("a request to an instance must name a path, not an absolute URL")
        proxy = request.header(PROXY)
        caller = await self._caller(request, carries_secret=bool(proxy))
        if proxy:
            name, secret = _parse_proxy_header(proxy)
            if named is not None and named != name:
                raise Forbidden(f"{paths.PROXY_HEADER} and the instance's id name two different instances")
            answer = await self._from_peer(name, request, caller)
            if answer is not None:
                return answer
            return await self._by_secret(name, secret, caller), target
        if named is None:
            raise NotFound("no instance named", details={"hint": f"Send its id as {paths.INSTANCE_HEADER}: ID"})
        assert caller is not None
        caller.need("user")
        answer = await self._from_peer(named, request, caller)
        return answer if answer is not None else (await self._of_caller(named, caller), target)

    async def _from_peer(self, name: str, request: Request, caller: Caller | None) -> Answer | None:
        if self._peers is None or self._instances.peek(name) is not None:
            return None
        return await self._peers.answer(name, request, caller)

    @staticmethod
    def named(request: Request) -> tuple[str | None, bytes]:
        """Return the id of the instance that a request names, if any, and the path in it."""
        if request.path.startswith(_PREFIX):
            name, slash, rest = request.target.removeprefix(_PREFIX.encode()).partition(b"/")
            return name.decode("latin-1"), slash + rest if slash else b"/"
        given = request.header(INSTANCE)
        return given.decode("latin-1") if given else None, request.target

    async def _caller(self, request: Request, *, carries_secret: bool) -> Caller | None:
        """Authenticate the caller. None: no token was sent, but the request carries an instance's secret."""
        try:
            return await self._authenticator.caller(request)
        except Unauthorized:
            if carries_secret and not request.header(b"authorization"):
                return None
            raise

    async def _by_secret(self, name: str, secret: str, caller: Caller | None) -> InstanceRecord:
        record = self._instances.peek(name)
        knows = record is not None and hmac.compare_digest(secret.encode(), record.secret.encode())
        may = caller is None or (
            caller.role in ("user", "admin") and record is not None and caller.may_see(record.account)
        )
        if record is not None and knows and may:
            return record
        if caller is not None and not secret:
            caller.need("user")
            return await self._of_caller(name, caller)
        ended = None
        if record is None:  # a caller with a token needs no secret to learn why it ended
            known = None if caller is not None else secret
            ended = await self._instances.ended_error(name, caller or OWNER, secret=known)
        raise ended or Forbidden(f"{paths.PROXY_HEADER} names no instance of yours")

    async def _of_caller(self, name: str, caller: Caller) -> InstanceRecord:
        try:
            return await self._instances.require(name, caller)
        except NotFound:
            raise Forbidden(f"you have no instance with the id {name[:100]}") from None


def _parse_proxy_header(value: bytes) -> tuple[str, str]:
    """Return the instance's id and secret from ``http://ID.SECRET:8081``."""
    try:
        parts = urlsplit(value.decode("ascii"))
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    rest = (parts.path.strip("/"), parts.query, parts.fragment, parts.username, parts.password) if host else ()
    if not host or any(rest) or parts.scheme != "http" or port not in (None, paths.DATA_PORT):
        raise Forbidden(f"{paths.PROXY_HEADER} names no instance")
    name, _, secret = host.rpartition(".")
    return (name, secret) if name else (secret, "")


def _reason(answer: str) -> str:
    """Return the reason in an instance's error response."""
    try:
        return str(from_json(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return "the port cannot be reached"


def _path_kind(target: bytes) -> str:
    """Return the kind of a path, for metrics. Names of tools are unbounded and must not become labels."""
    first = target.split(b"?")[0].split(b"/")[1:2]
    known = ("mcp", "tools", "functions", "task", "health", "exec", "files", "port", "sse")
    text = first[0].decode("latin-1") if first else ""
    return f"/{text}" if text in known else "other"
