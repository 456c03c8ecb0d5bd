"""Load balancer of services: forwards each request to a ready replica.

The replica with the fewest requests under way is chosen. A session of the older MCP protocol lives in one replica, so
its requests go there. A replica that accepts no connection has not seen the request, so another one is tried.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from weakref import WeakKeyDictionary

from aenv.errors import Forbidden, InstanceEnded, InstanceUnreachable, NotFound, Unavailable
from aenv.http.messages import Answer, ASGIApp, Message, Receive, Request, Response, Scope, Send, Stream
from aenv.platform.access.platform_tokens import Authenticator
from aenv.platform.gateway.gateway import Gateway
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.services.reconciler import ServiceReconciler
from aenv.platform.services.replica_handle import ReplicaHandle
from aenv.platform.services.services import Services
from aenv.schema import paths

SESSION_HEADER = b"mcp-session-id"
MAX_SESSIONS = 10_000
"""Sessions per service to remember with their replica."""
_PREFIX = f"{paths.SERVICE_PATH}/".encode()

Sessions = OrderedDict[bytes, ReplicaHandle]


class Balancer:
    """Forwards requests to replicas."""

    def __init__(
        self, services: Services, gateway: Gateway, instances: Instances, authenticator: Authenticator
    ) -> None:
        self._services = services
        self._gateway = gateway
        self._instances = instances
        self._authenticator = authenticator
        self._sessions: WeakKeyDictionary[ServiceReconciler, Sessions] = WeakKeyDictionary()
        self._sequence = count(1)

    async def __call__(self, request: Request) -> Answer:
        """Return a replica's answer to one request.

        Raises:
            Forbidden: the caller has no such service.
            Unavailable: no replica is ready; nothing was sent.
            InstanceUnreachable: a replica failed after it had received the request.
        """
        name, slash, rest = request.target.removeprefix(_PREFIX).partition(b"/")
        caller = await self._authenticator.caller(request)
        caller.need("user")
        service = name.partition(b"?")[0].decode("latin-1")
        try:
            forwarded = await self._services.forward(service, request, caller)
            if forwarded is not None:
                return forwarded
            reconciler = await self._services.reconciler(service, caller)
        except NotFound as error:
            raise Forbidden(f"you have {error.message}") from None
        tried: set[ReplicaHandle] = set()
        while True:
            replica = self._choose_replica(reconciler, request.header(SESSION_HEADER), tried)
            tried.add(replica)
            answer = await self._try_replica(reconciler, replica, request, slash + rest if slash else b"/")
            if answer is not None:
                return answer

    def _choose_replica(
        self, reconciler: ServiceReconciler, session: bytes, tried: set[ReplicaHandle]
    ) -> ReplicaHandle:
        ready = [replica for replica in reconciler.replicas if replica.ready and replica not in tried]
        if not ready:
            why = (
                "it is scaled to 0"
                if reconciler.record.replicas == 0
                else reconciler.state.reason or "its replicas are being created"
            )
            raise Unavailable(
                f"service {reconciler.record.id} has no ready replica: {why}",
                details={"retry_after": 1, "sent": False},
            )
        bound = self._sessions.get(reconciler, Sessions()).get(session) if session else None
        replica = bound if bound in ready else min(ready, key=lambda replica: (replica.requests, replica.last_used))
        assert replica is not None
        replica.last_used = next(self._sequence)
        return replica

    async def _try_replica(
        self, reconciler: ServiceReconciler, replica: ReplicaHandle, request: Request, target: bytes
    ) -> Answer | None:
        """Forward a request; return None if the replica received none of it."""
        record = self._instances.peek(replica.id)
        replica.requests += 1
        streams = False
        try:
            if record is None:
                raise InstanceEnded("it was deleted")
            answer = await self._gateway.forward(record, request, target)
            if not isinstance(answer, Stream):
                if isinstance(answer, Response):
                    self._bind(reconciler, _session_of(answer), replica)
                return answer
            streams = True
            return Stream(_CountedStream(answer.app, replica, lambda session: self._bind(reconciler, session, replica)))
        except (InstanceEnded, InstanceUnreachable) as error:
            replica.healthy = False
            reconciler.wake()
            if error.details.get("sent"):
                raise
            return None
        finally:
            if not streams:
                replica.requests -= 1

    def _bind(self, reconciler: ServiceReconciler, session: bytes, replica: ReplicaHandle) -> None:
        if not session:
            return
        sessions = self._sessions.setdefault(reconciler, Sessions())
        sessions[session] = replica
        sessions.move_to_end(session)
        while len(sessions) > MAX_SESSIONS:
            sessions.popitem(last=False)


class _CountedStream:
    """A streamed answer, which counts as a request under way until it ends."""

    def __init__(self, app: ASGIApp, replica: ReplicaHandle, bind: Callable[[bytes], None]) -> None:
        self._app = app
        self._replica = replica
        self._bind = bind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def observe(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._bind(dict(message["headers"]).get(SESSION_HEADER, b""))
            await send(message)

        try:
            await self._app(scope, receive, observe)
        finally:
            self._replica.requests -= 1


def _session_of(answer: Response) -> bytes:
    _, found, rest = (b"\r\n" + answer.headers).partition(b"\r\n%s: " % SESSION_HEADER)
    return rest.partition(b"\r\n")[0] if found else b""
