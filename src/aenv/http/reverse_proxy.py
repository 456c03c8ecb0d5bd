"""Reverse proxy: forwards a request to another server and its response back, both while they arrive.

A `ResponseTap` sees what was passed on, without delaying it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable
from typing import Protocol

from aenv.errors import Forbidden
from aenv.http.client import ConnectionLost
from aenv.http.messages import STATUS_LINES, Answer, Message, Receive, Request, Response, Scope, Send, Stream, Takeover
from aenv.http.raw_stream import join
from aenv.http.relay import Relay, RelayedResponse
from aenv.tracing.logging import getLogger

log = getLogger("http")

HOP_BY_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"expect", b"host",
    )
)  # fmt: skip
"""Hop-by-hop headers, which are not forwarded: a request is framed anew."""
NOT_RELAYED = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"upgrade"))
"""Headers of a response that are not passed on: it is framed anew."""


class ResponseTap(Protocol):
    """Sees the response to a forwarded request."""

    def data(self, data: bytes) -> None:
        """Take bytes of the body, after they were passed on."""

    def end(self, complete: bool) -> None:
        """Take note of the end: the body is complete, or the server or the client has ended it early."""


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


UPGRADES = (b"websocket", b"tcp")
"""Protocols that an instance's own server switches to."""


async def forward(relay: Relay, head: bytes, request: Request, upgrades: Iterable[bytes] = UPGRADES) -> Answer:
    """Forward a request and return its response. An upgrade to one of ``upgrades`` connects both sides.

    Raises:
        ConnectFailed: nothing was sent.
        ConnectionLost: the request went out, at least in part, and no response came.
    """
    protocol = next((each for each in upgrades if request.wants_upgrade_to(each)), None)
    if protocol is None:
        return relayed_answer(await relay.send(head, request_body(request)), request)
    switched = await relay.switch(head + b"connection: Upgrade\r\nupgrade: %s\r\n\r\n" % protocol)
    if isinstance(switched, RelayedResponse):
        return relayed_answer(switched, request)
    lines = b"".join(b"%s: %s\r\n" % pair for pair in switched.headers)
    head = STATUS_LINES[101] + lines + b"\r\n"
    return Takeover(head, lambda stream: join(stream, switched.stream))


def relayed_answer(response: RelayedResponse, request: Request, tap: ResponseTap | None = None) -> Response | Stream:
    """Return the response of the other server: complete if it is short, otherwise as a stream."""
    body = response.complete_body()
    if body is None:
        return Stream(StreamedResponse(response, tap), response.status)
    if tap is not None:
        tap.data(body)
        tap.end(True)
    lines = b"".join(b"%s: %s\r\n" % pair for pair in response.headers if pair[0] not in NOT_RELAYED)
    return Response(response.status, b"" if request.method == "HEAD" else body, lines)


class StreamedResponse:
    """A streamed response, as an ASGI application."""

    def __init__(self, response: RelayedResponse, tap: ResponseTap | None = None) -> None:
        self._response = response
        self._tap = tap
        self._complete = False

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
            if self._tap is not None:
                self._tap.end(self._complete)

    async def _copy(self, send: Send) -> None:
        headers = [pair for pair in self._response.headers if pair[0] not in NOT_RELAYED]
        headers += [pair for pair in self._response.headers if pair[0] == b"content-length"]
        await send({"type": "http.response.start", "status": self._response.status, "headers": headers})
        async for data in self._response.chunks():
            await send({"type": "http.response.body", "body": data, "more_body": True})
            if self._tap is not None:
                self._tap.data(data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self._complete = True


async def _disconnected(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
