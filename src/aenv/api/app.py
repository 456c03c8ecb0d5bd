"""The platform's routes, with the envelope that existing clients know."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from aenv._version import __version__
from aenv.api.access import OWNER, Doorkeeper
from aenv.api.asking import Answer, Ask, Route, refusal
from aenv.api.asking import body as _body
from aenv.api.asking import envelope as _envelope
from aenv.api.asking import number as _number
from aenv.api.asking import ok as _ok
from aenv.api.asking import wait as _wait
from aenv.api.audit import Audit
from aenv.api.following import News, log_answer
from aenv.api.gateway import Gateway
from aenv.api.instances import Instances
from aenv.errors import AEnvError, InvalidArguments, NotFound
from aenv.runtime.messages import Message, Receive, Request, Response, Scope, Send, Stream
from aenv.schema import paths
from aenv.schema.instance import EnvInstanceCreateRequest, EnvStatus

PAGE = 1000
"""Instances in one page, at the most."""


class _Ttl(BaseModel):
    model_config = ConfigDict(extra="forbid")

    ttl: str = Field(default="", max_length=64)


class PlatformApp:
    """Answers requests to the control plane, and those for instances that come the same way."""

    def __init__(
        self,
        instances: Instances,
        *,
        door: Doorkeeper | None = None,
        gateway: Gateway | None = None,
        audit: Audit | None = None,
        beside: Callable[[Request], Awaitable[Response]] | None = None,
        more: Iterable[tuple[str, str, str, Route]] = (),
    ) -> None:
        """``beside``: answers what is none of ours; without ``door``, whoever gets here is the owner.

        ``more``: further routes, each with its method, the pattern of its path, and the action's name.
        """
        self._instances = instances
        self._door = door
        self._gateway = gateway
        self._audit = audit
        self._beside = beside
        base, one = re.escape(paths.INSTANCES), r"(?P<name>[^/]+)"
        self._routes: list[tuple[str, re.Pattern[str], str, Route]] = [
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
                ("GET", f"/{one}", "get", self._get),
                ("DELETE", f"/{one}", "delete", self._delete),
            )
        ]
        self._routes += [(method, re.compile(path), action, route) for method, path, action, route in more]

    async def __call__(self, request: Request) -> Answer:
        """Answer one request."""
        if self._gateway is not None and Gateway.wants(request):
            try:
                return await self._gateway(request)
            except AEnvError as error:
                return refusal(error)
        found = self._find(request)
        if request.stream is not None and (found is None or found[1] != self._inside):
            request.body, request.stream = b"".join([data async for data in request.stream]), None
        if self._beside is not None and not _is_ours(request.path):
            return await self._beside(request)
        began = time.perf_counter()
        ask, status = None, 500
        try:
            if request.path == paths.HEALTH:
                return _ok({"status": "healthy", "version": __version__})
            caller = await self._door.caller(request) if self._door is not None else OWNER
            if request.path == paths.METRICS:
                text = self._instances.metrics.text().encode()
                return Response(200, text, b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n")
            if (request.method, request.path) == ("POST", paths.LEASE):
                caller.need("user")
                return Stream(self._lease)
            if found is None:
                raise NotFound(f"nothing at {request.method} {request.path}", details=_advice(request.path))
            if found[0] not in _READING:
                caller.need("user")
            query = parse_qsl(request.query.decode("latin-1"), keep_blank_values=True)
            ask = Ask(request, caller, found[2], query)
            answer = await found[1](ask)
            status = answer.status if isinstance(answer, Response) else 200
        except AEnvError as error:
            answer, status = refusal(error), error.status
            self._instances.metrics.count("refused_total", code=error.code)
        finally:
            if found is not None:
                self._done(request, found[0], found[2], ask, status, (time.perf_counter() - began) * 1000)
        return answer

    def _find(self, request: Request) -> tuple[str, Route, str] | None:
        for method, pattern, action, route in self._routes:
            if method == request.method and (match := pattern.fullmatch(request.path)) is not None:
                return action, route, match.groupdict().get("name", "")
        return None

    def _done(self, request: Request, action: str, name: str, ask: Ask | None, status: int, spent: float) -> None:
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

    async def _create(self, ask: Ask) -> Answer:
        wish = _body(EnvInstanceCreateRequest, ask.request)
        if wish.count is not None:
            return _ok(await self._instances.create_many(wish, wish.count, ask.caller))
        return _ok(await self._instances.create(wish, ask.caller))

    async def _list(self, ask: Ask) -> Answer:
        page = await self._instances.page(ask.name, ask.caller, **_filters(ask))
        return Response(200, to_json({**_envelope(page.items), "next": page.next}))

    async def _page(self, ask: Ask) -> Answer:
        return _ok(await self._instances.page(ask.one("envName") or "*", ask.caller, **_filters(ask)))

    async def _get(self, ask: Ask) -> Answer:
        return _ok(await self._instances.get(ask.name, _wait(ask.one("wait")), ask.caller))

    async def _delete(self, ask: Ask) -> Answer:
        await self._instances.delete(ask.name, ask.caller)
        return _ok("Deleted successfully")

    async def _renew(self, ask: Ask) -> Answer:
        wish = _body(_Ttl, ask.request) if ask.request.body else _Ttl()
        return _ok(await self._instances.renew(ask.name, wish.ttl, ask.caller))

    async def _events(self, ask: Ask) -> Answer:
        return _ok(self._instances.events(ask.name, ask.caller))

    async def _logs(self, ask: Ask) -> Answer:
        return log_answer(ask, self._instances.logs(ask.name, ask.caller), lambda: self._news(ask))

    def _news(self, ask: Ask) -> News:
        _, position = self._instances.log_since(ask.name, 0, ask.caller)

        def news() -> str:
            nonlocal position
            text, position = self._instances.log_since(ask.name, position, ask.caller)
            return text

        return news

    async def _inside(self, ask: Ask) -> Answer:
        if self._gateway is None:
            raise NotFound("this platform's instances are called at their own address")
        path, mark, query = ask.request.target.partition(b"?")
        target = path[path.rindex(b"/") :] + mark + query
        return await self._gateway.forward(self._instances.find(ask.name, ask.caller), ask.request, target)

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


def _is_ours(path: str) -> bool:
    return path in (paths.HEALTH, paths.METRICS, paths.LEASE) or path.startswith((paths.INSTANCES, paths.SERVICES))


def _filters(ask: Ask) -> dict[str, Any]:
    labels = {}
    for text in [value for name, value in ask.query if name == "label"]:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidArguments(f"label: write it like label=experiment=e1, not '{text}'")
        labels[name] = value
    status = ask.one("status")
    if status is not None and status not in list(EnvStatus):
        raise InvalidArguments(f"status: '{status}' is none; use one of {', '.join(EnvStatus)}")
    limit = _number("limit", ask.one("limit"))
    if limit is not None and not 1 <= limit <= PAGE:
        raise InvalidArguments(f"limit: between 1 and {PAGE}")
    return {
        "owner": ask.one("owner"), "labels": labels, "status": status, "limit": limit, "after": ask.one("after"),
    }  # fmt: skip
