"""Reverse proxy: forwards a request to another server and its response back, both while they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable

from aenv.errors import Forbidden
from aenv.http.client import ConnectionLost
from aenv.http.messages import STATUS_LINES, Answer, Message, Receive, Request, Response, Scope, Send, Stream, Takeover
from aenv.http.raw_stream import join
from aenv.http.relay import Relay, RelayedResponse
from aenv.tracing.logging import getLogger

log = getLogger("gateway")

HOP_BY_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"expect", b"host",
    )
)  # fmt: skip
"""Hop-by-hop headers, which are not forwarded: a request is framed anew."""
_NOT_RELAYED = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"upgrade"))


def forwarded_head(
    request: Request, target: bytes, own: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]
) -> bytes:
    """Return the head of a forwarded request, without its length and the final empty line.

    Raises:
        Forbidden: a header contains a line break, which would split it in two.
    """
    method = "GET" if request.method == "HEAD" else request.method
    lines = [b"%s %s HTTP/1.1\r\n" % (method.encode(), target)]
    lines += [b"%s: %s\r\n" % pair for pair in own]
    for name, value in request.headers:
        if name not in without:
            if b"\r" in value or b"\n" in value or b"\0" in value:
                raise Forbidden("a header contains a line break")
            lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join(lines)


def request_body(request: Request) -> bytes | AsyncIterable[bytes]:
    """Return the body of a request, complete or as a stream."""
    return request.body if request.stream is None else request.stream


async def forward(relay: Relay, head: bytes, request: Request) -> Answer:
    """Forward a request and return its response. A WebSocket upgrade connects both sides.

    Raises:
        ConnectFailed: nothing was sent.
        ConnectionLost: the request went out, at least in part, and no response came.
    """
    if not request.wants_upgrade_to(b"websocket"):
        return relayed_answer(await relay.send(head, request_body(request)), request)
    switched = await relay.switch(head + b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n")
    if isinstance(switched, RelayedResponse):
        return relayed_answer(switched, request)
    lines = b"".join(b"%s: %s\r\n" % pair for pair in switched.headers)
    head = STATUS_LINES[101] + lines + b"\r\n"
    return Takeover(head, lambda stream: join(stream, switched.stream))


def relayed_answer(response: RelayedResponse, request: Request) -> Response | Stream:
    """Return the response of the other server: complete if it is short, otherwise as a stream."""
    body = response.complete_body()
    if body is None:
        return Stream(_StreamedResponse(response), response.status)
    lines = b"".join(b"%s: %s\r\n" % pair for pair in response.headers if pair[0] not in _NOT_RELAYED)
    return Response(response.status, b"" if request.method == "HEAD" else body, lines)


def isolate_origin(answer: Answer) -> Answer:
    """Isolate the response of an untrusted server from the platform's web origin.

    The browser sees the platform's origin, so the response must not set cookies or other state for it, and its page is
    sandboxed into an opaque origin. Other pages that know the URL may read it.
    """
    if isinstance(answer, Response):
        lines = [line for line in answer.headers.split(b"\r\n") if not line.startswith(_ORIGIN_HEADERS)]
        answer.headers = b"\r\n".join([*_ISOLATION_LINES, *lines])
    elif isinstance(answer, Takeover):
        lines = [line for line in answer.head.split(b"\r\n") if not line.startswith(_ORIGIN_HEADERS)]
        answer.head = b"\r\n".join(lines)
    elif isinstance(answer, Stream) and isinstance(answer.app, _StreamedResponse):
        answer.app.isolate()
    return answer


_ORIGIN_HEADERS = (
    b"set-cookie:", b"access-control-allow-origin:",
    b"alt-svc:", b"clear-site-data:", b"nel:", b"report-to:", b"reporting-endpoints:", b"service-worker-allowed:",
    b"strict-transport-security:",
)  # fmt: skip
"""Headers that apply to a whole origin, and so to the platform and the ports of other instances."""
_ISOLATION = [
    (b"content-security-policy", b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"),
    (b"access-control-allow-origin", b"*"),
]
_ISOLATION_LINES = [b"%s: %s" % pair for pair in _ISOLATION]


class _StreamedResponse:
    """A streamed response, as an ASGI application."""

    def __init__(self, response: RelayedResponse) -> None:
        self._response = response
        self._own: list[tuple[bytes, bytes]] = []

    def isolate(self) -> None:
        self._own = _ISOLATION

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the request, which was forwarded already
        copying = asyncio.ensure_future(self._copy(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({copying, gone}, return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
        except ConnectionLost as error:
            log.warning("a forwarded response ended early: %s", error.message)  # end ours early, too
        finally:
            for task in (copying, gone):
                task.cancel()
            await asyncio.wait({copying, gone})
            self._response.close()

    async def _copy(self, send: Send) -> None:
        headers = [pair for pair in self._response.headers if pair[0] not in _NOT_RELAYED]
        if self._own:
            headers = [*self._own, *(pair for pair in headers if not (pair[0] + b":").startswith(_ORIGIN_HEADERS))]
        headers += [pair for pair in self._response.headers if pair[0] == b"content-length"]
        await send({"type": "http.response.start", "status": self._response.status, "headers": headers})
        async for data in self._response.chunks():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
