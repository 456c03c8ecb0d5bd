"""Around every request: its id, its place in a trace, and a line in the log."""

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
_OURS = (
    paths.INSTANCES, paths.SERVICES, paths.PLATFORM_TOKENS, paths.LEASE, paths.OPENAPI, paths.MCP, paths.REWARD,
    "/api/v1/", "/env/",
)  # fmt: skip
_CUT = {paths.PORT: 3, paths.INSTANCE_PATH: 2, paths.SERVICE_PATH: 2, paths.TOOLS: 1, paths.FUNCTIONS: 1}
"""Parts that are shown of a path."""
_QUIET = (paths.HEALTH, paths.READY, paths.METRICS)


class RequestLog:
    """A handler of requests, as those who run the platform see it."""

    def __init__(self, handler: Handler, *, level: int) -> None:
        """``level``: of the lines in the log; calls of instances, of which there are many more, are for debugging."""
        self._handler = handler
        self._level = level

    async def __call__(self, request: Request) -> Answer:
        """Answer, and tell."""
        if request.path in _QUIET:
            return await self._handler(request)
        given, parent = request.header(REQUEST_ID), SpanContext.parse(request.header(HEADER))
        name = given.decode() if _ID.fullmatch(given) else secrets.token_hex(8)
        known = Correlation(name, parent.trace_id if parent else "", _instance(request))
        correlation.current.set(known)
        began = time.perf_counter()
        if spans.tracer is None:
            answer = await self._handler(request)
        else:
            answer = await self._traced(request, parent, known)
        if isinstance(answer, Response):
            answer.headers += b"x-request-id: %s\r\n" % name.encode()
        level = logging.DEBUG if _is_call(request) else self._level
        if log.isEnabledFor(level):
            status = answer.status if isinstance(answer, Response) else 200
            spent = round((time.perf_counter() - began) * 1000, 3)
            path = _path(request)
            facts = {"method": request.method, "path": path, "status": status, "duration_ms": spent}
            log.log(level, "%s %s %d in %.1f ms", request.method, path, status, spent, extra={"fields": facts})
        return answer

    async def _traced(self, request: Request, parent: SpanContext | None, known: Correlation) -> Answer:
        title = f"{request.method} {_family(request.path)}"
        with spans.span(title, "server", parent, http_request_method=request.method, url_path=_path(request)) as span:
            assert span is not None
            known.trace = span.context.trace_id
            # Whoever passes the request on passes our place on with it.
            request.headers = [pair for pair in request.headers if pair[0] != HEADER]
            request.headers.append((HEADER, span.context.header))
            began = time.time_ns()
            answer = await self._handler(request)
            if known.instance:
                span.set(aenv_instance=known.instance)
            if isinstance(answer, Response):
                _told(span, answer, began)
            return answer


def _told(span: spans.Span, answer: Response, began: int) -> None:
    """What the answer says of itself. What an instance says of its time is recorded here, and said no more."""
    span.set(http_response_status=answer.status)
    if answer.status >= 500:
        span.fail(f"HTTP {answer.status}")
    lines = answer.headers.split(b"\r\n")
    said = [line for line in lines if line.lower().startswith(TIMING + b":")]
    if said:
        spans.record_reported(said[0], span.context, began, time.time_ns())
        answer.headers = b"\r\n".join(line for line in lines if line not in said)


def _path(request: Request) -> str:
    """What may be written down of it: the signature in the URL of a port opens that port, and names of tools, or what
    is no path of ours, may be anything.
    """
    for start, parts in _CUT.items():
        if request.path.startswith(f"{start}/"):
            return "/".join(request.path.split("/")[: parts + 1])
    return request.path if request.path.startswith(_OURS) else "/…"


def _is_call(request: Request) -> bool:
    named = request.header(_NAMED) or request.header(_PROXY)
    return bool(named) or request.path.startswith((f"{paths.INSTANCE_PATH}/", f"{paths.PORT}/"))


def _instance(request: Request) -> str:
    given = request.header(_NAMED)
    if given:
        return given.decode("latin-1")[:128]
    match = _INSTANCE.fullmatch(request.path)
    return match[1] if match is not None and match[1] != "list" else ""


def _family(path: str) -> str:
    """A path without what is different in each."""
    match = _INSTANCE.fullmatch(path)
    if match is None or match[1] == "list":
        return path
    start, end = match.span(1)
    rest = path[end:]
    return f"{path[:start]}{{id}}{rest}" if path.startswith(paths.INSTANCES) else f"{path[:start]}{{id}}"
