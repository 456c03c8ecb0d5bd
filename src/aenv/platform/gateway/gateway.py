"""The data plane: requests for instances, passed on after a look at who sends them.

Where a request goes is decided by the id of an instance and by nothing else. Older clients name a URL in a header;
the host in it is what the platform told them, an id and a secret, and whatever else it names is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from typing import Protocol
from urllib.parse import urlsplit

from pydantic_core import from_json

from aenv.errors import AEnvError, Forbidden, InstanceEnded, InstanceUnreachable, NotFound, Unauthorized
from aenv.http.client import ConnectFailed, ConnectionLost
from aenv.http.messages import Answer, Handler, Request
from aenv.http.relay import Relay, RelayFailed
from aenv.http.url import ServerUrl
from aenv.platform.access.platform_tokens import OWNER, Authenticator, Caller
from aenv.platform.gateway.ports import Port, Ports, port_of
from aenv.platform.gateway.proxy import OF_ONE_CONNECTION, head_of, kept_apart, pass_on
from aenv.platform.instances.instance_record import InstanceRecord
from aenv.platform.instances.lifecycle import Instances
from aenv.schema import paths
from aenv.schema.instances import EnvStatus

INSTANCE, PROXY = paths.INSTANCE_HEADER.lower().encode(), paths.PROXY_HEADER.lower().encode()
PEER = paths.PEER_HEADER.encode()
LOOKS, LOOK_SECONDS = 25, 0.02
_PREFIX, _SERVICE_PREFIX = paths.INSTANCE_PATH + "/", paths.SERVICE_PATH + "/"
_SIGNED = paths.PORT + "/"
_PREFIXES = (_PREFIX, _SERVICE_PREFIX, _SIGNED)
_NOT_PASSED_ON = OF_ONE_CONNECTION | {b"authorization", b"origin", b"cookie", INSTANCE, PROXY, PEER}
"""Those of this one connection, and those that are for us and not for the author's code."""
_NOT_TO_PORTS = OF_ONE_CONNECTION | {b"cookie", INSTANCE, PROXY, PEER}
"""Who has a URL of a port needs no token of ours: what is in `authorization` is for the server there."""
_PORT_HEAD = (
    b"GET " + paths.PORT.encode() + b"/%d HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %s\r\n"
    b"connection: Upgrade\r\nupgrade: tcp\r\n\r\n"
)


class OtherServer(Protocol):
    """Instances of other servers."""

    async def answer(self, name: str, request: Request, caller: Caller | None) -> Answer | None:
        """What the server of that instance answers; None: it is on this one, or on none."""


class Gateway:
    """Passes requests on."""

    def __init__(
        self,
        instances: Instances,
        door: Authenticator,
        elsewhere: OtherServer | None = None,
        ports: Ports | None = None,
    ) -> None:
        self._instances = instances
        self._elsewhere = elsewhere
        self._door = door
        self._ports = ports
        self._relays: dict[str, dict[int, Relay]] = {}
        self.services: Handler | None = None
        """Answers requests for services."""
        instances.on_gone = self._hang_up

    @staticmethod
    def wants(request: Request) -> bool:
        """Whether a request is for an instance and not for the platform."""
        return request.path.startswith(_PREFIXES) or bool(request.header(INSTANCE) or request.header(PROXY))

    async def __call__(self, request: Request) -> Answer:
        """Answer one request with what the instance answers."""
        if request.path.startswith(_SIGNED):
            return await self._signed(request)
        if self.services is not None and request.path.startswith(_SERVICE_PREFIX):
            return await self.services(request)
        found = await self._meant(request)
        if not isinstance(found, tuple):
            return found
        record, target = found
        return await self.forward(record, request, target)

    async def forward(self, record: InstanceRecord, request: Request, target: bytes) -> Answer:
        """Pass a request on to an instance that its sender may use.

        Raises:
            InstanceEnded: it is there no more; nothing was sent.
            InstanceUnreachable: it cannot be reached, or went away in the middle.
        """
        port = port_of(target)
        if port is not None:
            return await self._to_port(record, request, port, _NOT_PASSED_ON)
        if record.status is not EnvStatus.RUNNING or record.ref is None:
            raise await self._not_running(record)
        own = ((b"host", b"localhost"), (b"authorization", b"Bearer " + record.ref.token.encode()))
        head = head_of(request, target, own, _NOT_PASSED_ON)
        return await self._pass_on(record, self._relay(record), head, request, _family(target))

    async def _signed(self, request: Request) -> Answer:
        """Somebody has a URL of a port, and needs no token."""
        if self._ports is None:
            raise NotFound("this platform gives out no URLs of ports")
        name, port = self._ports.read(request)
        record = self._instances.peek(name)
        if record is None:
            answer = await self._from_elsewhere(name, request, None)
            if answer is None:
                raise await self._instances.ended_error(name) or NotFound(f"no instance {name}")
            return answer
        return await self._to_port(record, request, port, _NOT_TO_PORTS)

    async def _to_port(self, record: InstanceRecord, request: Request, port: Port, without: frozenset[bytes]) -> Answer:
        if record.status is not EnvStatus.RUNNING or record.ref is None:
            raise await self._not_running(record)
        own = ((b"host", b"localhost:%d" % port.number),)
        head = head_of(request, port.target, own, without)
        relay = self._relay(record, port.number)
        answer = await self._pass_on(record, relay, head, request, paths.PORT)
        return kept_apart(answer)

    async def _not_running(self, record: InstanceRecord) -> AEnvError:
        await self._instances.check(record)
        return InstanceUnreachable(f"instance {record.id} is {record.status}", details={"sent": False})

    async def _pass_on(
        self, record: InstanceRecord, relay: Relay, head: bytes, request: Request, family: str
    ) -> Answer:
        began = time.perf_counter()
        record.calls += 1
        try:
            answer = await pass_on(relay, head, request)
        except RelayFailed as error:
            raise InstanceUnreachable(f"{record.id}: {_said(error.message)}", details={"sent": False}) from None
        except ConnectFailed:
            await self._look(record)
            raise InstanceUnreachable(f"{record.id} takes no connection", details={"sent": False}) from None
        except ConnectionLost as error:
            raise await self._broke(record, error) from None
        metrics = self._instances.metrics
        metrics.count("mcp_requests_total", method=request.method, endpoint=family, status=str(answer.status))
        metrics.observe("mcp_request_duration_ms", (time.perf_counter() - began) * 1000, endpoint=family)
        return answer

    async def _broke(self, record: InstanceRecord, error: ConnectionLost) -> AEnvError:
        try:
            await self._look(record)
        except InstanceEnded as ended:
            return InstanceUnreachable(f"{ended.message}; the request may have been acted on", details={"sent": True})
        return InstanceUnreachable(error.message, details={"sent": True})

    async def _look(self, record: InstanceRecord) -> None:
        """Whether it has ended. The news of that may be on its way still, so look for a moment.

        Raises:
            InstanceEnded: it has.
        """
        for _ in range(LOOKS):
            await self._instances.check(record)
            await asyncio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Hang up, everywhere."""
        for name in list(self._relays):
            self._hang_up(name)

    def _relay(self, record: InstanceRecord, port: int = 0) -> Relay:
        """The way to an instance's own server, or through it to a port in its network."""
        assert record.ref is not None
        own = self._relays.setdefault(record.id, {})
        relay = own.get(port)
        if relay is None:
            through = _PORT_HEAD % (port, record.ref.token.encode()) if port else None
            relay = own[port] = Relay(ServerUrl.parse(record.ref.data_url), through=through)
        return relay

    def _hang_up(self, name: str) -> None:
        for relay in self._relays.pop(name, {}).values():
            relay.close()

    # --- who, and where to

    async def _meant(self, request: Request) -> tuple[InstanceRecord, bytes] | Answer:
        """The instance, and the path in it; or what another server answers, if it is there.

        Raises:
            InstanceEnded: it was there, and was deleted, ended, or was lost in a restart.
            Unauthorized, Forbidden: who asks may not use it, or there never was one.
        """
        named, target = self._named(request)
        if not target.startswith(b"/"):
            raise Forbidden("a request for an instance names a path in it, and no address")
        proxy = request.header(PROXY)
        caller = await self._caller(request, carries_secret=bool(proxy))
        if proxy:
            name, secret = _in_proxy_header(proxy)
            if named is not None and named != name:
                raise Forbidden(f"{paths.PROXY_HEADER} and the instance's id name two instances")
            answer = await self._from_elsewhere(name, request, caller)
            if answer is not None:
                return answer
            return await self._by_secret(name, secret, caller), target
        if named is None:
            raise NotFound("say which instance is meant", details={"hint": f"In a header: {paths.INSTANCE_HEADER}: ID"})
        assert caller is not None
        caller.need("user")
        answer = await self._from_elsewhere(named, request, caller)
        return answer if answer is not None else (await self._of_caller(named, caller), target)

    async def _from_elsewhere(self, name: str, request: Request, caller: Caller | None) -> Answer | None:
        if self._elsewhere is None or self._instances.peek(name) is not None:
            return None
        return await self._elsewhere.answer(name, request, caller)

    @staticmethod
    def _named(request: Request) -> tuple[str | None, bytes]:
        if request.path.startswith(_PREFIX):
            name, slash, rest = request.target.removeprefix(_PREFIX.encode()).partition(b"/")
            return name.decode("latin-1"), slash + rest if slash else b"/"
        given = request.header(INSTANCE)
        return given.decode("latin-1") if given else None, request.target

    async def _caller(self, request: Request, *, carries_secret: bool) -> Caller | None:
        """None: somebody without a token, who may still know an instance's secret."""
        try:
            return await self._door.caller(request)
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
        if record is None:  # who has a token needs no secret to be told
            known = None if caller is not None else secret
            ended = await self._instances.ended_error(name, caller or OWNER, secret=known)
        raise ended or Forbidden(f"{paths.PROXY_HEADER} names no instance of yours")

    async def _of_caller(self, name: str, caller: Caller) -> InstanceRecord:
        try:
            return await self._instances.require(name, caller)
        except NotFound:
            raise Forbidden(f"there is no instance of yours with the id {name[:100]}") from None


def _in_proxy_header(value: bytes) -> tuple[str, str]:
    """The instance's id and its secret, from ``http://ID.SECRET:8081``."""
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


def _said(answer: str) -> str:
    """What an instance gave as its reason."""
    try:
        return str(from_json(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return "the port cannot be reached"


def _family(target: bytes) -> str:
    """What kind of path it is: names of tools are not for metrics, as there is no end to them."""
    first = target.split(b"?")[0].split(b"/")[1:2]
    known = ("mcp", "tools", "functions", "task", "health", "exec", "files", "sse")
    text = first[0].decode("latin-1") if first else ""
    return f"/{text}" if text in known else "other"
