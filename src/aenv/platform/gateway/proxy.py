"""A request passed on to another server, and its answer passed back, each as it comes."""

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

OF_ONE_CONNECTION = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"expect", b"host",
    )
)  # fmt: skip
"""Headers that are not for whoever is behind it: a request is framed anew."""
_NOT_PASSED_BACK = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"upgrade"))


def head_of(request: Request, target: bytes, own: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]) -> bytes:
    """The head of a request as it is passed on, whole but for its length and the empty line.

    Raises:
        Forbidden: a header has a line break in it, which would make it two.
    """
    method = "GET" if request.method == "HEAD" else request.method
    lines = [b"%s %s HTTP/1.1\r\n" % (method.encode(), target)]
    lines += [b"%s: %s\r\n" % pair for pair in own]
    for name, value in request.headers:
        if name not in without:
            if b"\r" in value or b"\n" in value or b"\0" in value:
                raise Forbidden("a header has a line break in it")
            lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join(lines)


def body_of(request: Request) -> bytes | AsyncIterable[bytes]:
    """All of it, or as it comes."""
    return request.body if request.stream is None else request.stream


async def pass_on(relay: Relay, head: bytes, request: Request) -> Answer:
    """Send a request on, and have its answer. WebSocket, where it is asked for and agreed to, goes both ways.

    Raises:
        NotConnected: nothing was sent.
        ConnectionBroke: the request went out, at least in part, and no answer came.
    """
    if not request.wants_upgrade_to(b"websocket"):
        return pass_back(await relay.send(head, body_of(request)), request)
    switched = await relay.switch(head + b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n")
    if isinstance(switched, RelayedResponse):
        return pass_back(switched, request)
    lines = b"".join(b"%s: %s\r\n" % pair for pair in switched.headers)
    head = STATUS_LINES[101] + lines + b"\r\n"
    return Takeover(head, lambda stream: join(stream, switched.stream))


def pass_back(passed: RelayedResponse, request: Request) -> Response | Stream:
    """What the other side answered: whole if it is brief, else as it comes."""
    whole = passed.complete_body()
    if whole is None:
        return Stream(_Answer(passed), passed.status)
    lines = b"".join(b"%s: %s\r\n" % pair for pair in passed.headers if pair[0] not in _NOT_PASSED_BACK)
    return Response(passed.status, b"" if request.method == "HEAD" else whole, lines)


def kept_apart(answer: Answer) -> Answer:
    """An answer of a server that anybody may have written, which a browser takes for one of ours.

    A page of it must be no page of the platform's: it has no cookies, and for the browser it comes from nowhere. Who
    has its URL may read it from anywhere.
    """
    if isinstance(answer, Response):
        lines = [line for line in answer.headers.split(b"\r\n") if not line.startswith(_OURS)]
        answer.headers = b"\r\n".join([*_APART_LINES, *lines])
    elif isinstance(answer, Takeover):
        lines = [line for line in answer.head.split(b"\r\n") if not line.startswith(_OURS)]
        answer.head = b"\r\n".join(lines)
    elif isinstance(answer, Stream) and isinstance(answer.app, _Answer):
        answer.app.keep_apart()
    return answer


_OURS = (
    b"set-cookie:", b"access-control-allow-origin:",
    b"alt-svc:", b"clear-site-data:", b"nel:", b"report-to:", b"reporting-endpoints:", b"service-worker-allowed:",
    b"strict-transport-security:",
)  # fmt: skip
"""Headers that hold for all of an origin, and so for the platform and the ports of others."""
_APART = [
    (b"content-security-policy", b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"),
    (b"access-control-allow-origin", b"*"),
]
_APART_LINES = [b"%s: %s" % pair for pair in _APART]


class _Answer:
    """An answer that comes bit by bit, as an ASGI application."""

    def __init__(self, passed: RelayedResponse) -> None:
        self._passed = passed
        self._own: list[tuple[bytes, bytes]] = []

    def keep_apart(self) -> None:
        self._own = _APART

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the request, which was passed on already
        copying = asyncio.ensure_future(self._copy(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({copying, gone}, return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
        except ConnectionLost as error:
            log.warning("an answer broke off: %s", error.message)  # and so does ours: that is how its reader knows
        finally:
            for task in (copying, gone):
                task.cancel()
            await asyncio.wait({copying, gone})
            self._passed.close()

    async def _copy(self, send: Send) -> None:
        headers = [pair for pair in self._passed.headers if pair[0] not in _NOT_PASSED_BACK]
        if self._own:
            headers = [*self._own, *(pair for pair in headers if not (pair[0] + b":").startswith(_OURS))]
        headers += [pair for pair in self._passed.headers if pair[0] == b"content-length"]
        await send({"type": "http.response.start", "status": self._passed.status, "headers": headers})
        async for data in self._passed.chunks():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
