"""The platform's routes, with the envelope that existing clients know."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl

from pydantic_core import from_json, to_json

from aenv._version import __version__
from aenv.errors import AEnvError, InstanceEnded, InvalidArguments, NotFound, TooLarge
from aenv.http.messages import Answer, Message, Receive, Request, Response, Scope, Send, Stream
from aenv.http.openapi import merge_documents
from aenv.platform.access.audit_log import AuditLog
from aenv.platform.access.platform_tokens import OWNER, Authenticator, Caller
from aenv.platform.gateway.gateway import Gateway
from aenv.platform.gateway.log_stream import News, log_answer
from aenv.platform.gateway.peers import Peers
from aenv.platform.gateway.ports import Ports
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.openapi import PAGE, TtlRequest, document
from aenv.platform.operations.metrics_routes import metrics_answer
from aenv.platform.request_context import More, RequestContext, Route, body, envelope, number, ok, refusal, wait
from aenv.schema import paths
from aenv.schema.instances import EnvInstanceCreateRequest, EnvStatus, InstancePage, PresignedUrl, PresignRequest

MAX_WISH = 4 * 1024 * 1024
"""Bytes of a wish for an instance: much of it is kept, and written down."""


class PlatformApp:
    """Answers requests to the control plane, and those for instances that come the same way."""

    def __init__(
        self,
        instances: Instances,
        *,
        door: Authenticator | None = None,
        gateway: Gateway | None = None,
        audit: AuditLog | None = None,
        beside: Callable[[Request], Awaitable[Response]] | None = None,
        peers: Peers | None = None,
        ports: Ports | None = None,
        more: Sequence[More] = (),
    ) -> None:
        """``beside``: answers what is none of ours; without ``door``, whoever gets here is the owner.

        ``more``: other routes of ours.
        """
        self._peers = peers
        self._ports = ports
        self._instances = instances
        self._door = door
        self._gateway = gateway
        self._audit = audit
        self._beside = beside
        base, one = re.escape(paths.INSTANCES), r"(?P<name>[^/]+)"
        self._routes: list[More] = [
            (method, re.compile(f"{base}{path}"), action, route)
            for method, path, action, route in (
                ("POST", "", "create", self._create),
                ("GET", "/list", "list", self._page),
                ("GET", f"/{one}/list", "list", self._list),
                ("GET", f"/{one}/logs", "logs", self._logs),
                ("GET", f"/{one}/events", "events", self._events),
                ("PUT", f"/{one}/ttl", "renew", self._renew),
                ("POST", f"/{one}/exec", "exec", self._inside),
                ("GET", f"/{one}/files", "download", self._inside),
                ("PUT", f"/{one}/files", "upload", self._inside),
                ("GET", f"/{one}/archive", "download", self._inside),
                ("PUT", f"/{one}/archive", "upload", self._inside),
                ("POST", f"/{one}/presign-url", "presign", self._presign),
                ("GET", f"/{one}", "get", self._get),
                ("DELETE", f"/{one}", "delete", self._delete),
            )
        ]
        self._routes += more

    async def __call__(self, request: Request) -> Answer:
        """Answer one request."""
        if self._gateway is not None and Gateway.wants(request):
            try:
                return await self._gateway(request)
            except AEnvError as error:
                return refusal(error)
        found = self._find(request)
        if request.stream is not None and (found is None or found[1] != self._inside):
            try:
                if self._door is not None:
                    await self._door.caller(request)  # before anything of it is held
            except AEnvError as error:
                return refusal(error)
            request.body, request.stream = b"".join([data async for data in request.stream]), None
        if self._beside is not None and found is None and request.path != paths.OPENAPI and not _is_ours(request.path):
            return await self._beside(request)
        if request.path == paths.OPENAPI and request.method in ("GET", "HEAD"):
            return Response(200, await self._document(request))
        began = time.perf_counter()
        ask, status = None, 500
        try:
            if request.path == paths.HEALTH:
                return ok({"status": "healthy", "version": __version__})
            caller = await self._door.caller(request) if self._door is not None else OWNER
            if request.path == paths.METRICS:
                caller.need("metrics")
                return metrics_answer(self._instances.metrics)
            if (request.method, request.path) == ("POST", paths.LEASE):
                caller.need("user")
                return Stream(self._lease)
            if found is None:
                raise NotFound(f"nothing at {request.method} {request.path}", details=_advice(request.path))
            caller.need("read-only" if found[0] in _READING else "user")
            if found[2] and found[0] != "list" and request.path.startswith(paths.INSTANCES):
                elsewhere = await self._elsewhere(found[0], found[2], request, caller)
                if elsewhere is not None:
                    status = elsewhere.status if isinstance(elsewhere, Response) else 200
                    return elsewhere
            query = parse_qsl(request.query.decode("latin-1"), keep_blank_values=True)
            ask = RequestContext(request, caller, found[2], query)
            answer = await found[1](ask)
            status = answer.status if isinstance(answer, Response) else 200
        except AEnvError as error:
            answer, status = refusal(error), error.status
            self._instances.metrics.count("refused_total", code=error.code)
        finally:
            if found is not None:
                self._done(request, found[0], found[2], ask, status, (time.perf_counter() - began) * 1000)
        return answer

    async def _elsewhere(self, action: str, name: str, request: Request, caller: Caller) -> Answer | None:
        """What the server answers that has the instance, where that is another one."""
        if self._peers is None or self._instances.peek(name) is not None:
            return None
        try:
            return await self._peers.answer(name, request, caller)
        except InstanceEnded:
            if action not in ("get", "delete", "logs", "events"):  # what is still known of it is in the store
                raise
            return None

    async def _document(self, request: Request) -> bytes:
        """All that is answered here, the routes of what is beside us included."""
        own = document()
        if self._beside is None:
            return to_json(own)
        request.method = "GET"
        return to_json(merge_documents(own, from_json((await self._beside(request)).body)))

    def _find(self, request: Request) -> tuple[str, Route, str] | None:
        for method, pattern, action, route in self._routes:
            if method == request.method and (match := pattern.fullmatch(request.path)) is not None:
                return action, route, match.groupdict().get("name", "")
        return None

    def _done(
        self, request: Request, action: str, name: str, ask: RequestContext | None, status: int, spent: float
    ) -> None:
        metrics = self._instances.metrics
        metrics.count("requests_total", method=request.method, endpoint=action, status=str(status))
        metrics.observe("request_duration_ms", spent, endpoint=action)
        if self._audit is not None and action not in _READING and ask is not None:
            trace = request.header(b"env-instance-trace-id").decode("latin-1")
            facts = {"service" if action.startswith("service-") else "instance": name} if name else {}
            self._audit.write(
                action, user=ask.caller.name, token=ask.caller.token_id, status=status, trace=trace[:64], **facts
            )

    # --- routes

    async def _create(self, ask: RequestContext) -> Answer:
        if len(ask.request.body) > MAX_WISH:
            raise TooLarge(f"a wish for an instance has at most {MAX_WISH} bytes", details={"hint": "Use upload()."})
        wish = body(EnvInstanceCreateRequest, ask.request)
        longest = self._instances.admission.capacity.longest_wait
        if wish.queue_timeout is not None and wish.queue_timeout > longest:
            wish = wish.model_copy(update={"queue_timeout": longest})
        if self._peers is not None and wish.request_id:
            elsewhere = await self._peers.claim(ask.request, ask.caller, wish.request_id)
            if elsewhere is not None:
                return elsewhere
        if wish.count is not None:
            return ok(await self._instances.create_many(wish, wish.count, ask.caller))
        return ok(await self._instances.create(wish, ask.caller))

    async def _list(self, ask: RequestContext) -> Answer:
        page = await self._pages(ask.name, ask)
        return Response(200, to_json({**envelope(page.items), "next": page.next}))

    async def _page(self, ask: RequestContext) -> Answer:
        return ok(await self._pages(ask.one("envName") or "*", ask))

    async def _pages(self, env: str, ask: RequestContext) -> InstancePage:
        filters = _filters(ask)
        own = await self._instances.page(env, ask.caller, **filters)
        if self._peers is None:
            return own
        return await self._peers.page(own, ask.request, ask.caller, {"env": env, **filters})

    async def _get(self, ask: RequestContext) -> Answer:
        deleted = ask.one("deleted") in ("1", "true")
        return ok(await self._instances.get(ask.name, wait(ask.one("wait")), ask.caller, deleted=deleted))

    async def _delete(self, ask: RequestContext) -> Answer:
        await self._instances.delete(ask.name, ask.caller)
        return ok("Deleted successfully")

    async def _renew(self, ask: RequestContext) -> Answer:
        wish = body(TtlRequest, ask.request) if ask.request.body else TtlRequest()
        return ok(await self._instances.renew(ask.name, wish.ttl, ask.caller))

    async def _events(self, ask: RequestContext) -> Answer:
        try:
            return ok(self._instances.events(ask.name, ask.caller))
        except NotFound:
            return ok((await self._instances.get_ended(ask.name, ask.caller)).events)

    async def _logs(self, ask: RequestContext) -> Answer:
        try:
            text = self._instances.logs(ask.name, ask.caller)
        except NotFound:
            text = (await self._instances.get_ended(ask.name, ask.caller)).log
        return log_answer(ask, text, lambda: self._news(ask))

    def _news(self, ask: RequestContext) -> News:
        position = 0
        with contextlib.suppress(InstanceEnded, NotFound):  # one that has ended has no news
            _, position = self._instances.log_since(ask.name, 0, ask.caller)

        def news() -> str:
            nonlocal position
            text, position = self._instances.log_since(ask.name, position, ask.caller)
            return text

        return news

    async def _inside(self, ask: RequestContext) -> Answer:
        if self._gateway is None:
            raise NotFound("this platform's instances are called at their own address")
        path, mark, query = ask.request.target.partition(b"?")
        target = path[path.rindex(b"/") :] + mark + query
        record = await self._instances.require(ask.name, ask.caller)
        return await self._gateway.forward(record, ask.request, target)

    async def _presign(self, ask: RequestContext) -> Answer:
        record = await self._instances.require(ask.name, ask.caller)
        wish = body(PresignRequest, ask.request)
        if self._ports is None:
            raise NotFound("this platform gives out no URLs of ports")
        await self._ports.open()
        url = self._ports.url(record.id, wish.port, wish.expiration_time_in_minutes, ask.request)
        return ok(PresignedUrl(url=url))

    async def _lease(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say its name, and hold it for as long as the connection is open."""
        name = self._instances.open_lease()
        try:
            headers = [(paths.LEASE_HEADER.encode(), name.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            message: Message = {}
            while message.get("type") != "http.disconnect":
                message = await receive()
        finally:
            await self._instances.end_lease(name)


_READING = ("list", "get", "logs", "events", "service-list", "service-get", "service-logs", "service-events")
"""What changes nothing: every role may do it, and it is not written down."""


def _advice(path: str) -> dict[str, str]:
    if not path.startswith(paths.SERVICES):
        return {}
    return {"hint": "Services need a platform that 'aenv serve' serves; one for this user alone has none."}


def takes_any_body(request: Request) -> bool:
    """Whether the body of a request is passed on to an instance as it comes, and so may have any length."""
    if request.method != "PUT" or not request.path.endswith(paths.ARCHIVE):
        return False
    return (request.path.startswith(paths.INSTANCES + "/") and request.path.count("/") == 3) or Gateway.wants(request)


def _is_ours(path: str) -> bool:
    return path in (paths.HEALTH, paths.METRICS, paths.LEASE) or path.startswith((paths.INSTANCES, paths.SERVICES))


def _filters(ask: RequestContext) -> dict[str, Any]:
    labels = {}
    for text in [value for name, value in ask.query if name == "label"]:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidArguments(f"label: write it like label=experiment=e1, not '{text}'")
        labels[name] = value
    status = ask.one("status")
    if status is not None and status not in list(EnvStatus):
        raise InvalidArguments(f"status: '{status}' is none; use one of {', '.join(EnvStatus)}")
    limit = number("limit", ask.one("limit"))
    if limit is not None and not 1 <= limit <= PAGE:
        raise InvalidArguments(f"limit: between 1 and {PAGE}")
    return {
        "owner": ask.one("owner"), "labels": labels, "status": status, "limit": limit, "after": ask.one("after"),
    }  # fmt: skip
