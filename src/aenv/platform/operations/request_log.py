"""Request middleware: assigns a request id, records a span, and writes a log line."""

from __future__ import annotations

import logging
import re
import secrets
import time

from aenv.http.messages import Answer, Handler, Request, Response
from aenv.schema import paths
from aenv.tracing import correlation, spans
from aenv.tracing.context import HEADER, TIMING, SpanContext
from aenv.tracing.correlation import Correlation
from aenv.tracing.logging import getLogger

log = getLogger("access")

REQUEST_ID = b"x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_INSTANCE = re.compile(rf"(?:{paths.INSTANCES}|{paths.INSTANCE_PATH})/([A-Za-z0-9._-]{{1,128}})(?:/.*)?")
_NAMED, _PROXY = paths.INSTANCE_HEADER.lower().encode(), paths.PROXY_HEADER.lower().encode()
_LOGGED_PREFIXES = (
    paths.INSTANCES, paths.SERVICES, paths.PLATFORM_TOKENS, paths.LEASE, paths.OPENAPI, paths.MCP, paths.REWARD,
    "/api/v1/", "/env/",
)  # fmt: skip
_LOGGED_SEGMENTS = {paths.PORT: 3, paths.INSTANCE_PATH: 2, paths.SERVICE_PATH: 2, paths.TOOLS: 1, paths.FUNCTIONS: 1}
"""Number of path segments that are logged, by prefix."""
_QUIET = (paths.HEALTH, paths.READY, paths.METRICS)


class RequestLog:
    """Wraps a handler with request ids, tracing and logging."""

    def __init__(self, handler: Handler, *, level: int) -> None:
        """``level``: of log lines. Calls to instances, of which there are many more, are logged at DEBUG."""
        self._handler = handler
        self._level = level

    async def __call__(self, request: Request) -> Answer:
        """Handle a request and log it."""
        if request.path in _QUIET:
            return await self._handler(request)
        given, parent = request.header(REQUEST_ID), SpanContext.parse(request.header(HEADER))
        name = given.decode() if _ID.fullmatch(given) else secrets.token_hex(8)
        ids = Correlation(name, parent.trace_id if parent else "", _instance(request))
        correlation.current.set(ids)
        began = time.perf_counter()
        if spans.tracer is None:
            answer = await self._handler(request)
        else:
            answer = await self._traced(request, parent, ids)
        if isinstance(answer, Response):
            answer.headers += b"x-request-id: %s\r\n" % name.encode()
        level = logging.DEBUG if _is_call(request) else self._level
        if log.isEnabledFor(level):
            status = answer.status if isinstance(answer, Response) else 200
            spent = round((time.perf_counter() - began) * 1000, 3)
            path = _loggable_path(request)
            facts = {"method": request.method, "path": path, "status": status, "duration_ms": spent}
            log.log(level, "%s %s %d in %.1f ms", request.method, path, status, spent, extra={"fields": facts})
        return answer

    async def _traced(self, request: Request, parent: SpanContext | None, ids: Correlation) -> Answer:
        title = f"{request.method} {_route(request.path)}"
        with spans.span(
            title, "server", parent, http_request_method=request.method, url_path=_loggable_path(request)
        ) as span:
            assert span is not None
            ids.trace = span.context.trace_id
            # A forwarded request must carry our span as its parent.
            request.headers = [pair for pair in request.headers if pair[0] != HEADER]
            request.headers.append((HEADER, span.context.header))
            began = time.time_ns()
            answer = await self._handler(request)
            if ids.instance:
                span.set(aenv_instance=ids.instance)
            if isinstance(answer, Response):
                _record_response(span, answer, began)
            return answer


def _record_response(span: spans.Span, answer: Response, began: int) -> None:
    """Record the response in the span. Server timings of an instance become spans and are not passed on."""
    span.set(http_response_status=answer.status)
    if answer.status >= 500:
        span.fail(f"HTTP {answer.status}")
    lines = answer.headers.split(b"\r\n")
    timings = [line for line in lines if line.lower().startswith(TIMING + b":")]
    if timings:
        spans.record_reported(timings[0], span.context, began, time.time_ns())
        answer.headers = b"\r\n".join(line for line in lines if line not in timings)


def _loggable_path(request: Request) -> str:
    """Return the part of the path that may be logged.

    The signature in the URL of a port grants access to it, and names of tools or unknown paths may be any text.
    """
    for start, parts in _LOGGED_SEGMENTS.items():
        if request.path.startswith(f"{start}/"):
            return "/".join(request.path.split("/")[: parts + 1])
    return request.path if request.path.startswith(_LOGGED_PREFIXES) else "/…"


def _is_call(request: Request) -> bool:
    named = request.header(_NAMED) or request.header(_PROXY)
    return bool(named) or request.path.startswith((f"{paths.INSTANCE_PATH}/", f"{paths.PORT}/"))


def _instance(request: Request) -> str:
    given = request.header(_NAMED)
    if given:
        return given.decode("latin-1")[:128]
    match = _INSTANCE.fullmatch(request.path)
    return match[1] if match is not None and match[1] != "list" else ""


def _route(path: str) -> str:
    """Return the path with the id replaced by a placeholder."""
    match = _INSTANCE.fullmatch(path)
    if match is None or match[1] == "list":
        return path
    start, end = match.span(1)
    rest = path[end:]
    return f"{path[:start]}{{id}}{rest}" if path.startswith(paths.INSTANCES) else f"{path[:start]}{{id}}"
