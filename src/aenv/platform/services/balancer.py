"""The data plane of services: each request goes to one of the replicas that are ready.

It goes to the one with the fewest requests under way. A session of MCP's older era lives in one replica, so what
belongs to it goes there. A replica that takes no connection has not seen the request, so the next one is tried.
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
from aenv.platform.services.reconciler import ReplicaHandle, ServiceReconciler
from aenv.platform.services.services import Services
from aenv.schema import paths

SESSION = b"mcp-session-id"
SESSIONS = 10_000
"""Sessions of one service of which it is known where they are."""
_PREFIX = f"{paths.SERVICE_PATH}/".encode()

Sessions = OrderedDict[bytes, ReplicaHandle]


class Balancer:
    """Passes requests on to replicas."""

    def __init__(self, services: Services, gateway: Gateway, instances: Instances, door: Authenticator) -> None:
        self._services = services
        self._gateway = gateway
        self._instances = instances
        self._door = door
        self._sessions: WeakKeyDictionary[ServiceReconciler, Sessions] = WeakKeyDictionary()
        self._turns = count(1)

    async def __call__(self, request: Request) -> Answer:
        """Answer one request with what a replica answers.

        Raises:
            Forbidden: there is no such service of the caller's.
            Unavailable: no replica is ready; nothing was sent.
            InstanceUnreachable: a replica went away in the middle.
        """
        name, slash, rest = request.target.removeprefix(_PREFIX).partition(b"/")
        caller = await self._door.caller(request)
        caller.need("user")
        service = name.partition(b"?")[0].decode("latin-1")
        try:
            elsewhere = await self._services.elsewhere(service, request, caller)
            if elsewhere is not None:
                return elsewhere
            keeper = await self._services.keeper(service, caller)
        except NotFound as error:
            raise Forbidden(f"there is {error.message} of yours") from None
        tried: set[ReplicaHandle] = set()
        while True:
            copy = self._choose(keeper, request.header(SESSION), tried)
            tried.add(copy)
            answer = await self._try(keeper, copy, request, slash + rest if slash else b"/")
            if answer is not None:
                return answer

    def _choose(self, keeper: ServiceReconciler, session: bytes, tried: set[ReplicaHandle]) -> ReplicaHandle:
        ready = [copy for copy in keeper.copies if copy.ready and copy not in tried]
        if not ready:
            why = "it is scaled to 0" if keeper.record.replicas == 0 else keeper.state.reason or "they are being made"
            raise Unavailable(
                f"service {keeper.record.id} has no replica that is ready: {why}",
                details={"retry_after": 1, "sent": False},
            )
        bound = self._sessions.get(keeper, Sessions()).get(session) if session else None
        copy = bound if bound in ready else min(ready, key=lambda copy: (copy.busy, copy.used))
        assert copy is not None
        copy.used = next(self._turns)
        return copy

    async def _try(
        self, keeper: ServiceReconciler, copy: ReplicaHandle, request: Request, target: bytes
    ) -> Answer | None:
        """None: it got nothing of the request."""
        record = self._instances.peek(copy.id)
        copy.busy += 1
        streams = False
        try:
            if record is None:
                raise InstanceEnded("it was deleted")
            answer = await self._gateway.forward(record, request, target)
            if not isinstance(answer, Stream):
                if isinstance(answer, Response):
                    self._bind(keeper, _session_in(answer), copy)
                return answer
            streams = True
            return Stream(_Counted(answer.app, copy, lambda session: self._bind(keeper, session, copy)))
        except (InstanceEnded, InstanceUnreachable) as error:
            copy.healthy = False
            keeper.wake()
            if error.details.get("sent"):
                raise
            return None
        finally:
            if not streams:
                copy.busy -= 1

    def _bind(self, keeper: ServiceReconciler, session: bytes, copy: ReplicaHandle) -> None:
        if not session:
            return
        sessions = self._sessions.setdefault(keeper, Sessions())
        sessions[session] = copy
        sessions.move_to_end(session)
        while len(sessions) > SESSIONS:
            sessions.popitem(last=False)


class _Counted:
    """An answer that comes bit by bit, for as long as it does."""

    def __init__(self, app: ASGIApp, copy: ReplicaHandle, bind: Callable[[bytes], None]) -> None:
        self._app = app
        self._copy = copy
        self._bind = bind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def look(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._bind(dict(message["headers"]).get(SESSION, b""))
            await send(message)

        try:
            await self._app(scope, receive, look)
        finally:
            self._copy.busy -= 1


def _session_in(answer: Response) -> bytes:
    _, found, rest = (b"\r\n" + answer.headers).partition(b"\r\n%s: " % SESSION)
    return rest.partition(b"\r\n")[0] if found else b""
