"""Routes of the platform, in the envelope that existing clients expect."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl

from pydantic_core import from_json, to_json

from aenv._version import __version__
from aenv.errors import AEnvError, InstanceEnded, InvalidArguments, NotFound, TooLarge
from aenv.http.messages import Answer, BodyStream, Message, Receive, Request, Response, Scope, Send, Stream
from aenv.http.openapi import merge_documents
from aenv.http.router import Router
from aenv.platform.access.audit_log import AuditLog
from aenv.platform.access.platform_tokens import OWNER, Authenticator, Caller
from aenv.platform.gateway.gateway import Gateway
from aenv.platform.gateway.log_stream import LogReader, log_answer
from aenv.platform.gateway.peers import Peers
from aenv.platform.gateway.ports import Ports
from aenv.platform.instances.instance_forks import InstanceForks
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.openapi import PAGE, TtlRequest, document
from aenv.platform.operations.metrics_routes import metrics_answer
from aenv.platform.request_context import RequestContext, Route, RouteEntry, body, envelope, number, ok, refusal, wait
from aenv.platform.trajectories.trajectory_routes import UPLOAD, is_upload
from aenv.schema import paths
from aenv.schema.instances import (
    ActivityAnswer,
    CheckpointRequest,
    EnvInstanceCreateRequest,
    EnvStatus,
    InstanceForkRequest,
    InstancePage,
    PresignedUrl,
    PresignRequest,
    RewindRequest,
)

MAX_CREATE_BYTES = 4 * 1024 * 1024
"""Limit for a create request: much of it is kept in memory and in the store."""


_Found = tuple[str, Route, str]
"""Action, handler, and the name in the path."""


class PlatformApp:
    """Handles requests to the control plane, and requests to instances on the same address."""

    def __init__(
        self,
        instances: Instances,
        *,
        authenticator: Authenticator | None = None,
        gateway: Gateway | None = None,
        audit: AuditLog | None = None,
        fallback: Callable[[Request], Awaitable[Response]] | None = None,
        peers: Peers | None = None,
        ports: Ports | None = None,
        more: Sequence[RouteEntry] = (),
    ) -> None:
        """Wire up the routes.

        ``authenticator``: without one, every caller is the owner. ``fallback`` handles paths that are not the
        platform's, such as those of an embedded hub. ``more``: further routes.
        """
        self._peers = peers
        self._ports = ports
        self._instances = instances
        self._forks = InstanceForks(instances)
        self._authenticator = authenticator
        self._gateway = gateway
        self._audit = audit
        self._fallback = fallback
        self._router: Router[tuple[str, Route]] = Router()
        self.routes = (*self._own_routes(), *more)
        for method, path, action, handle in self.routes:
            self._router.add(method, path, (action, handle))

    def _own_routes(self) -> tuple[RouteEntry, ...]:
        base, one = paths.INSTANCES, f"{paths.INSTANCES}/{{name}}"
        return (
            ("POST", base, "create", self._create),
            ("GET", f"{base}/list", "list", self._page),
            ("GET", paths.ACTIVITY, "get", self._activity),
            ("GET", f"{one}/list", "list", self._list),
            ("GET", f"{one}/logs", "logs", self._logs),
            ("GET", f"{one}/events", "events", self._events),
            ("PUT", f"{one}/ttl", "renew", self._renew),
            ("POST", f"{one}/fork", "create", self._fork),
            ("POST", f"{one}/checkpoint", "create", self._checkpoint),
            ("POST", f"{one}/rewind", "create", self._rewind),
            ("GET", f"{one}/branches", "get", self._branches),
            ("POST", f"{one}/exec", "exec", self._inside),
            ("GET", f"{one}/exec", "processes", self._inside),
            ("GET", f"{one}/exec/{{process}}", "processes", self._inside),
            ("GET", f"{one}/exec/{{process}}/output", "output", self._inside),
            ("POST", f"{one}/exec/{{process}}/stdin", "stdin", self._inside),
            ("POST", f"{one}/exec/{{process}}/signal", "signal", self._inside),
            ("GET", f"{one}/files/stat", "list-files", self._inside),
            ("GET", f"{one}/files/list", "list-files", self._inside),
            ("GET", f"{one}/files/watch", "watch", self._inside),
            ("POST", f"{one}/files/folder", "upload", self._inside),
            ("DELETE", f"{one}/files", "remove", self._inside),
            ("GET", f"{one}/files", "download", self._inside),
            ("PUT", f"{one}/files", "upload", self._inside),
            ("GET", f"{one}/archive", "download", self._inside),
            ("PUT", f"{one}/archive", "upload", self._inside),
            ("POST", f"{one}/presign-url", "presign", self._presign),
            ("GET", one, "get", self._get),
            ("DELETE", one, "delete", self._delete),
        )

    async def __call__(self, request: Request) -> Answer:
        """Handle a request."""
        if self._gateway is not None and Gateway.wants(request):
            try:
                return await self._gateway(request)
            except AEnvError as error:
                return refusal(error)
        found = self._find(request)
        if request.stream is not None and (found is None or (found[1] != self._inside and found[0] != UPLOAD)):
            try:
                await self._hold_body(request, request.stream)
            except AEnvError as error:
                return refusal(error)
        if self._fallback is not None and found is None and not _is_platform_path(request.path):
            return await self._fallback(request)
        if request.path == paths.OPENAPI and request.method in ("GET", "HEAD"):
            return Response(200, await self._document(request))
        return await self._answer(request, found)

    async def _hold_body(self, request: Request, stream: BodyStream) -> None:
        """Read a streamed body into memory, after its sender is authenticated."""
        if self._authenticator is not None:
            await self._authenticator.caller(request)
        request.body, request.stream = b"".join([data async for data in stream]), None

    async def _answer(self, request: Request, found: _Found | None) -> Answer:
        """Authenticate the caller, call the route, and record metrics and the audit log."""
        began = time.perf_counter()
        context, status = None, 500
        try:
            if request.path == paths.HEALTH:
                return ok({"status": "healthy", "version": __version__})
            caller = await self._authenticator.caller(request) if self._authenticator is not None else OWNER
            if request.path == paths.METRICS:
                caller.need("metrics")
                return metrics_answer(self._instances.metrics)
            if (request.method, request.path) == ("POST", paths.LEASE):
                caller.need("user")
                return Stream(self._lease)
            if found is None:
                raise NotFound(f"nothing at {request.method} {request.path}", details=_hint(request.path))
            caller.need("read-only" if found[0] in _READ_ONLY else "user")
            if found[2] and found[0] != "list" and request.path.startswith(paths.INSTANCES):
                response = await self._from_peer(found[0], found[2], request, caller)
                if response is not None:
                    status = response.status if isinstance(response, Response) else 200
                    return response
            query = parse_qsl(request.query.decode("latin-1"), keep_blank_values=True)
            context = RequestContext(request, caller, found[2], query)
            answer = await found[1](context)
            status = answer.status if isinstance(answer, Response) else 200
        except AEnvError as error:
            answer, status = refusal(error), error.status
            self._instances.metrics.count("refused_total", code=error.code)
        finally:
            if found is not None:
                self._record(request, found[0], found[2], context, status, (time.perf_counter() - began) * 1000)
        return answer

    async def _from_peer(self, action: str, name: str, request: Request, caller: Caller) -> Answer | None:
        """Return the response of the server that runs the instance, if that is another one."""
        if self._peers is None or self._instances.peek(name) is not None:
            return None
        try:
            return await self._peers.answer(name, request, caller)
        except InstanceEnded:
            if action not in ("get", "delete", "logs", "events"):  # the store still has the record, log and events
                raise
            return None

    async def _document(self, request: Request) -> bytes:
        """Return the OpenAPI document, including the routes of ``fallback``."""
        own = document()
        if self._fallback is None:
            return to_json(own)
        request.method = "GET"
        return to_json(merge_documents(own, from_json((await self._fallback(request)).body)))

    def _find(self, request: Request) -> _Found | None:
        found = self._router.find(request.method, request.path)
        if found is None:
            return None
        (action, handle), parts = found
        return action, handle, parts.get("name", "")

    def _record(
        self, request: Request, action: str, name: str, context: RequestContext | None, status: int, spent: float
    ) -> None:
        metrics = self._instances.metrics
        metrics.count("requests_total", method=request.method, endpoint=action, status=str(status))
        metrics.observe("request_duration_ms", spent, endpoint=action)
        if self._audit is not None and action not in _READ_ONLY and context is not None:
            trace = request.header(b"env-instance-trace-id").decode("latin-1")
            kind = {"service": "service", "trajectory": "episode"}.get(action.partition("-")[0], "instance")
            facts = {kind: name} if name else {}
            self._audit.write(
                action,
                user=context.caller.name,
                token=context.caller.token_id,
                status=status,
                trace=trace[:64],
                **facts,
            )

    # --- routes

    async def _create(self, context: RequestContext) -> Answer:
        if len(context.request.body) > MAX_CREATE_BYTES:
            raise TooLarge(f"a create request has at most {MAX_CREATE_BYTES} bytes", details={"hint": "Use upload()."})
        spec = body(EnvInstanceCreateRequest, context.request)
        longest = self._instances.admission.capacity.longest_wait
        if spec.queue_timeout is not None and spec.queue_timeout > longest:
            spec = spec.model_copy(update={"queue_timeout": longest})
        if self._peers is not None and spec.request_id:
            response = await self._peers.claim(context.request, context.caller, spec.request_id)
            if response is not None:
                return response
        if self._ports is not None and spec.mcp is not False:
            await self._ports.open_for_mcp()
        if spec.items is not None:
            if spec.count not in (None, len(spec.items)):
                raise InvalidArguments(f"count is {spec.count}, but there are {len(spec.items)} items")
            return ok(await self._instances.create_many(spec, len(spec.items), context.caller))
        if spec.count is not None:
            return ok(await self._instances.create_many(spec, spec.count, context.caller))
        return ok(await self._instances.create(spec, context.caller))

    async def _list(self, context: RequestContext) -> Answer:
        page = await self._pages(context.name, context)
        return Response(200, to_json({**envelope(page.items), "next": page.next}))

    async def _page(self, context: RequestContext) -> Answer:
        return ok(await self._pages(context.one("envName") or "*", context))

    async def _pages(self, env: str, context: RequestContext) -> InstancePage:
        filters = _filters(context)
        own = await self._instances.page(env, context.caller, **filters)
        if self._peers is None:
            return own
        return await self._peers.page(own, context.request, context.caller, {"env": env, **filters})

    async def _get(self, context: RequestContext) -> Answer:
        deleted = context.one("deleted") in ("1", "true")
        return ok(await self._instances.get(context.name, wait(context.one("wait")), context.caller, deleted=deleted))

    async def _activity(self, context: RequestContext) -> Answer:
        text = self._instances.activities.text(context.caller, context.one("request_id") or "")
        return ok(ActivityAnswer(waiting_for=text))

    async def _delete(self, context: RequestContext) -> Answer:
        await self._instances.delete(context.name, context.caller)
        return ok("Deleted successfully")

    async def _renew(self, context: RequestContext) -> Answer:
        spec = body(TtlRequest, context.request) if context.request.body else TtlRequest()
        return ok(await self._instances.renew(context.name, spec.ttl, context.caller))

    async def _fork(self, context: RequestContext) -> Answer:
        await self._forks.require(context.name, context.caller)
        return ok(await self._forks.fork(context.name, body(InstanceForkRequest, context.request), context.caller))

    async def _checkpoint(self, context: RequestContext) -> Answer:
        await self._forks.require(context.name, context.caller)
        spec = body(CheckpointRequest, context.request) if context.request.body else CheckpointRequest()
        return ok(await self._forks.checkpoint(context.name, spec, context.caller))

    async def _rewind(self, context: RequestContext) -> Answer:
        await self._forks.require(context.name, context.caller)
        return ok(await self._forks.rewind(context.name, body(RewindRequest, context.request), context.caller))

    async def _branches(self, context: RequestContext) -> Answer:
        return ok(await self._forks.branches(context.name, context.caller))

    async def _events(self, context: RequestContext) -> Answer:
        try:
            return ok(self._instances.events(context.name, context.caller))
        except NotFound:
            return ok((await self._instances.get_ended(context.name, context.caller)).events)

    async def _logs(self, context: RequestContext) -> Answer:
        try:
            text = self._instances.logs(context.name, context.caller)
        except NotFound:
            text = (await self._instances.get_ended(context.name, context.caller)).log
        return log_answer(context, text, lambda: self._log_reader(context))

    def _log_reader(self, context: RequestContext) -> LogReader:
        position = 0
        with contextlib.suppress(InstanceEnded, NotFound):  # an ended instance writes nothing more
            _, position = self._instances.log_since(context.name, 0, context.caller)

        def read_new() -> str:
            nonlocal position
            text, position = self._instances.log_since(context.name, position, context.caller)
            return text

        return read_new

    async def _inside(self, context: RequestContext) -> Answer:
        if self._gateway is None:
            raise NotFound("this platform does not forward requests; call the instance at its own address")
        target = b"/" + context.request.target.split(b"/", 3)[3]
        record = await self._instances.require(context.name, context.caller)
        return await self._gateway.forward(record, context.request, target)

    async def _presign(self, context: RequestContext) -> Answer:
        record = await self._instances.require(context.name, context.caller)
        spec = body(PresignRequest, context.request)
        if self._ports is None:
            raise NotFound("this platform does not issue URLs of ports")
        await self._ports.open()
        url = self._ports.url(record.id, spec.port, spec.expiration_time_in_minutes, context.request)
        return ok(PresignedUrl(url=url))

    async def _lease(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the name of a new lease, and hold it while the connection is open."""
        name = self._instances.open_lease()
        try:
            headers = [(paths.LEASE_HEADER.encode(), name.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            message: Message = {}
            while message.get("type") != "http.disconnect":
                message = await receive()
        finally:
            await self._instances.end_lease(name)


_READ_ONLY = (
    "list",
    "get",
    "logs",
    "events",
    "service-list",
    "service-get",
    "service-logs",
    "service-events",
    "pool-list",
    "rollout-list",
    "rollout-get",
    "trajectory-list",
    "trajectory-get",
)
"""Actions that change nothing: every role may do them, and they are not in the audit log."""


def _hint(path: str) -> dict[str, str]:
    if not path.startswith(paths.SERVICES):
        return {}
    return {"hint": "Services need a platform started with 'aenv serve'; the local platform of a user has none."}


def takes_any_body(request: Request) -> bool:
    """Return whether the body is read while it arrives, and so may have any length."""
    if is_upload(request):
        return True
    if request.method != "PUT" or not request.path.endswith(paths.ARCHIVE):
        return False
    return (request.path.startswith(paths.INSTANCES + "/") and request.path.count("/") == 3) or Gateway.wants(request)


def _is_platform_path(path: str) -> bool:
    own = (paths.HEALTH, paths.METRICS, paths.LEASE, paths.OPENAPI)
    return path in own or path.startswith(
        (paths.INSTANCES, paths.SERVICES, paths.POOLS, paths.ROLLOUTS, paths.TRAJECTORIES, paths.TRAJECTORY_RUNS)
    )


def _filters(context: RequestContext) -> dict[str, Any]:
    labels = {}
    for text in [value for name, value in context.query if name == "label"]:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidArguments(f"invalid label '{text}'; expected label=KEY=VALUE")
        labels[name] = value
    status = context.one("status")
    if status is not None and status not in list(EnvStatus):
        raise InvalidArguments(f"invalid status '{status}'; expected one of {', '.join(EnvStatus)}")
    limit = number("limit", context.one("limit"))
    if limit is not None and not 1 <= limit <= PAGE:
        raise InvalidArguments(f"invalid limit {limit}; expected 1 to {PAGE}")
    return {
        "owner": context.one("owner"), "labels": labels, "status": status, "limit": limit,
        "after": context.one("after"),
    }  # fmt: skip
