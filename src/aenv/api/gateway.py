"""The data plane: requests for instances, passed on after a look at who sends them.

Where a request goes is decided by the id of an instance and by nothing else. Older clients name a URL in a header;
the host in it is what the platform told them, an id and a secret, and whatever else it names is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterable
from urllib.parse import urlsplit

from aenv.api.access import Caller, Doorkeeper
from aenv.api.instances import Instances
from aenv.api.record import Record
from aenv.client.http import ConnectionBroke, NotConnected
from aenv.client.relay import Passed, Relay
from aenv.client.url import ServerUrl
from aenv.core.logging import getLogger
from aenv.errors import AEnvError, Forbidden, InstanceEnded, InstanceUnreachable, NotFound, Unauthorized
from aenv.runtime.messages import Handler, Message, Receive, Request, Response, Scope, Send, Stream
from aenv.schema import paths
from aenv.schema.instance import EnvStatus

log = getLogger("gateway")

INSTANCE, PROXY = paths.INSTANCE_HEADER.lower().encode(), paths.PROXY_HEADER.lower().encode()
LOOKS, LOOK_SECONDS = 25, 0.02
_PREFIX, _SERVICE_PREFIX = paths.INSTANCE_PATH + "/", paths.SERVICE_PATH + "/"
_NOT_PASSED_ON = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"expect",
        b"authorization", b"host", b"origin", b"cookie", INSTANCE, PROXY,
    )
)  # fmt: skip
"""Those of this one connection, and those that are for us and not for the author's code."""
_NOT_PASSED_BACK = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"upgrade"))


class Gateway:
    """Passes requests on."""

    def __init__(self, instances: Instances, door: Doorkeeper) -> None:
        self._instances = instances
        self._door = door
        self._relays: dict[str, Relay] = {}
        self.services: Handler | None = None
        """Answers requests for services."""
        instances.on_gone = self._hang_up

    @staticmethod
    def wants(request: Request) -> bool:
        """Whether a request is for an instance and not for the platform."""
        return request.path.startswith((_PREFIX, _SERVICE_PREFIX)) or bool(
            request.header(INSTANCE) or request.header(PROXY)
        )

    async def __call__(self, request: Request) -> Response | Stream:
        """Answer one request with what the instance answers."""
        if self.services is not None and request.path.startswith(_SERVICE_PREFIX):
            return await self.services(request)
        record, target = await self._meant(request)
        return await self.forward(record, request, target)

    async def forward(self, record: Record, request: Request, target: bytes) -> Response | Stream:
        """Pass a request on to an instance that its sender may use.

        Raises:
            InstanceEnded: it is there no more; nothing was sent.
            InstanceUnreachable: it cannot be reached, or went away in the middle.
        """
        if record.status is not EnvStatus.RUNNING or record.ref is None:
            await self._instances.check(record)
            raise InstanceUnreachable(f"instance {record.id} is {record.status}", details={"sent": False})
        began = time.perf_counter()
        body: bytes | AsyncIterable[bytes] = request.body if request.stream is None else request.stream
        try:
            passed = await self._relay(record).send(_head(request, target, record.ref.token), body)
        except NotConnected:
            await self._look(record)
            raise InstanceUnreachable(f"{record.id} takes no connection", details={"sent": False}) from None
        except ConnectionBroke as error:
            raise await self._broke(record, error) from None
        metrics, path = self._instances.metrics, _family(target)
        metrics.count("mcp_requests_total", method=request.method, endpoint=path, status=str(passed.status))
        metrics.observe("mcp_request_duration_ms", (time.perf_counter() - began) * 1000, endpoint=path)
        whole = passed.whole()
        if whole is None:
            return Stream(_Answer(passed))
        lines = b"".join(b"%s: %s\r\n" % pair for pair in passed.headers if pair[0] not in _NOT_PASSED_BACK)
        return Response(passed.status, b"" if request.method == "HEAD" else whole, lines)

    async def _broke(self, record: Record, error: ConnectionBroke) -> AEnvError:
        try:
            await self._look(record)
        except InstanceEnded as ended:
            return InstanceUnreachable(f"{ended.message}; the request may have been acted on", details={"sent": True})
        return InstanceUnreachable(error.message, details={"sent": True})

    async def _look(self, record: Record) -> None:
        """Whether it has ended. The news of that may be on its way still, so look for a moment.

        Raises:
            InstanceEnded: it has.
        """
        for _ in range(LOOKS):
            await self._instances.check(record)
            await asyncio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Hang up, everywhere."""
        for relay in self._relays.values():
            relay.close()

    def _relay(self, record: Record) -> Relay:
        assert record.ref is not None
        relay = self._relays.get(record.id)
        if relay is None:
            relay = self._relays[record.id] = Relay(ServerUrl.parse(record.ref.data_url))
        return relay

    def _hang_up(self, name: str) -> None:
        relay = self._relays.pop(name, None)
        if relay is not None:
            relay.close()

    # --- who, and where to

    async def _meant(self, request: Request) -> tuple[Record, bytes]:
        """The instance, and the path in it.

        Raises:
            Unauthorized, Forbidden: who asks may not use it, or there is none.
        """
        named, target = self._named(request)
        proxy = request.header(PROXY)
        caller = await self._caller(request, carries_secret=bool(proxy))
        if proxy:
            name, secret = _in_proxy_header(proxy)
            if named is not None and named != name:
                raise Forbidden(f"{paths.PROXY_HEADER} and the instance's id name two instances")
            return self._by_secret(name, secret, caller), target
        if named is None:
            raise NotFound("say which instance is meant", details={"hint": f"In a header: {paths.INSTANCE_HEADER}: ID"})
        assert caller is not None
        caller.need("user")
        return self._of_caller(named, caller), target

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

    def _by_secret(self, name: str, secret: str, caller: Caller | None) -> Record:
        record = self._instances.peek(name)
        knows = record is not None and hmac.compare_digest(secret.encode(), record.secret.encode())
        may = caller is None or (caller.role != "read-only" and record is not None and caller.may_see(record.account))
        if record is not None and knows and may:
            return record
        if caller is not None and not secret:
            caller.need("user")
            return self._of_caller(name, caller)
        raise Forbidden(f"{paths.PROXY_HEADER} names no instance of yours")

    def _of_caller(self, name: str, caller: Caller) -> Record:
        try:
            return self._instances.find(name, caller)
        except NotFound:
            raise Forbidden(f"there is no instance of yours with the id {name[:100]}") from None


class _Answer:
    """An answer that comes bit by bit, as an ASGI application."""

    def __init__(self, passed: Passed) -> None:
        self._passed = passed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the request, which was passed on already
        copying = asyncio.ensure_future(self._copy(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({copying, gone}, return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
        except ConnectionBroke as error:
            log.warning("an answer broke off: %s", error.message)  # and so does ours: that is how its reader knows
        finally:
            for task in (copying, gone):
                task.cancel()
            await asyncio.wait({copying, gone})
            self._passed.close()

    async def _copy(self, send: Send) -> None:
        headers = [pair for pair in self._passed.headers if pair[0] not in _NOT_PASSED_BACK]
        headers += [pair for pair in self._passed.headers if pair[0] == b"content-length"]
        await send({"type": "http.response.start", "status": self._passed.status, "headers": headers})
        async for data in self._passed.chunks():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


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


def _head(request: Request, target: bytes, token: str) -> bytes:
    """The request as the instance gets it: framed anew, with its own token."""
    method = "GET" if request.method == "HEAD" else request.method
    lines = [
        b"%s %s HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %s\r\n" % (method.encode(), target, token.encode())
    ]
    for name, value in request.headers:
        if name not in _NOT_PASSED_ON:
            if b"\r" in value or b"\n" in value or b"\0" in value:
                raise Forbidden("a header has a line break in it")
            lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join(lines)


def _family(target: bytes) -> str:
    """What kind of path it is: names of tools are not for metrics, as there is no end to them."""
    first = target.split(b"?")[0].split(b"/")[1:2]
    known = ("mcp", "tools", "functions", "task", "health", "exec", "files", "sse")
    text = first[0].decode("latin-1") if first else ""
    return f"/{text}" if text in known else "other"
