"""The hub's HTTP app: route a request, authenticate its caller, and turn errors into responses."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from pydantic_core import to_json

from aenv._version import __version__
from aenv.errors import AEnvError, InvalidArguments, NotFound, problem
from aenv.http.guard import bearer_token, refuse_web_pages
from aenv.http.messages import Request, Response
from aenv.http.router import Router
from aenv.hub.access.hub_tokens import ANYONE, OWNER, HubCaller, HubTokens
from aenv.hub.catalog import Catalog
from aenv.hub.local_hub import LocalHub
from aenv.hub.web import legacy_routes, routes
from aenv.hub.web.hub_metrics import CONTENT_TYPE, HubMetrics
from aenv.hub.web.openapi import document
from aenv.hub.web.route import Exchange, Route
from aenv.schema import paths

log = logging.getLogger("aenv.hub")

ROUTES = (*routes.ROUTES, *legacy_routes.ROUTES)
_BYTES = b"content-type: application/octet-stream\r\n"
_CHALLENGE = b'content-type: application/json\r\nwww-authenticate: Bearer realm="aenv hub"\r\n'
_BEHALF = paths.BEHALF_HEADER.encode()
_OLDER = ("/env", "/token", "/data")


Authenticate = Callable[[str], Awaitable[HubCaller]]


class HubApp:
    """Request handler of a hub."""

    def __init__(
        self, catalog: Catalog, *, auth: bool, only_loopback: bool = False, authenticate: Authenticate | None = None
    ) -> None:
        """``authenticate`` returns the caller of a token; by default only the hub's own tokens are accepted."""
        self._catalog = catalog
        self.metrics = HubMetrics()
        self._tokens = HubTokens(catalog.store, catalog.clock)
        self._authenticate = authenticate or self._tokens.authenticate
        self._auth = auth
        self._only_loopback = only_loopback and not auth
        self._openapi = to_json(document(ROUTES, __version__))
        self._router: Router[Route] = Router()
        for route in ROUTES:
            self._router.add(route.method, route.path, route, optional_slash=route.legacy)

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        answer = await self._answer(request)
        if request.method == "HEAD":
            answer.body = b""
        return answer

    async def _answer(self, request: Request) -> Response:
        """Answer and log a request. The log names the route, never the path: a path may contain a token."""
        started = time.perf_counter()
        where, caller, place = request.method, ANYONE, "none"
        try:
            fixed = await self._fixed(request)
            if fixed is not None:
                return fixed
            route, values = self._find(request)
            where, place = f"{route.method} {route.path}", route.path
            caller = await self._caller(request)
            data = await route.handler(Exchange(LocalHub(self._catalog, caller), request, values))
            answer = _answer(route, data)
        except AEnvError as error:
            answer = _refusal(error, older=request.path.startswith(_OLDER))
            if error.status >= 500:
                log.warning("%s: %s", where, error.message)
        except Exception:
            log.exception("%s failed", where)
            answer = Response(
                500, b'{"success":false,"error":"internal error; see the log","code":"internal","fault":"infra"}'
            )
        level = logging.DEBUG if request.method in ("GET", "HEAD") else logging.INFO
        spent = time.perf_counter() - started
        self.metrics.record(request.method, place, answer.status, spent)
        log.log(level, "%s by %s: %d in %.1f ms", where, caller.name, answer.status, spent * 1000)
        return answer

    async def _fixed(self, request: Request) -> Response | None:
        if request.path == paths.HEALTH and request.method in ("GET", "HEAD"):
            await self._catalog.store.get("meta", "health")
            data = {"status": "healthy", "version": __version__}
            return Response(200, to_json({"success": True, "code": 0, "message": "", "data": data, **data}))
        if request.path == paths.METRICS and request.method in ("GET", "HEAD"):
            (await self._caller(request)).need("admin")
            return Response(200, self.metrics.text(), CONTENT_TYPE)
        if request.path == paths.OPENAPI and request.method in ("GET", "HEAD"):
            return Response(200, self._openapi)
        return None

    def _find(self, request: Request) -> tuple[Route, dict[str, str]]:
        found = self._router.find("GET" if request.method == "HEAD" else request.method, request.path)
        if found is not None:
            return found
        others = self._router.methods(request.path)
        if others:
            raise _MethodNotAllowed(f"method {request.method} is not allowed here; use {' or '.join(others)}")
        raise NotFound(f"there is no such path; see GET {paths.OPENAPI}")

    async def _caller(self, request: Request) -> HubCaller:
        if not self._auth:
            if self._only_loopback:
                refuse_web_pages(request, "Serve with --auth to be reached under other names.")
            return OWNER
        text = bearer_token(request)
        caller = ANYONE if text is None else await self._authenticate(text)
        behalf = unquote(request.header(_BEHALF).decode("latin-1"))
        return replace(caller, behalf=behalf) if behalf else caller


class _MethodNotAllowed(InvalidArguments):
    code, status = "method", 405


def _answer(route: Route, data: Any) -> Response:
    if isinstance(data, bytes):
        return Response(200, data, _BYTES)
    if route.legacy:
        return Response(200, to_json({"success": True, "code": 0, "message": "", "data": data}))
    return Response(200, to_json({"success": True, "data": data}))


def _refusal(error: AEnvError, *, older: bool) -> Response:
    body = problem(error)
    body.setdefault("details", {})
    status = error.status
    if older:
        # Legacy clients read a number in `code` and the text in `message`, and do not know status 422.
        status = 400 if status == 422 else status
        body |= {"code": status, "message": error.message, "data": None}
    if status == 401:
        return Response(status, to_json(body), _CHALLENGE)
    return Response(status, to_json(body))
