"""A request passed on to another server, and its answer passed back, each as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable

from aenv.client.http import ConnectionBroke
from aenv.client.relay import Passed
from aenv.core.logging import getLogger
from aenv.errors import Forbidden
from aenv.runtime.messages import Message, Receive, Request, Response, Scope, Send, Stream

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


def pass_back(passed: Passed, request: Request) -> Response | Stream:
    """What the other side answered: whole if it is brief, else as it comes."""
    whole = passed.whole()
    if whole is None:
        return Stream(_Answer(passed))
    lines = b"".join(b"%s: %s\r\n" % pair for pair in passed.headers if pair[0] not in _NOT_PASSED_BACK)
    return Response(passed.status, b"" if request.method == "HEAD" else whole, lines)


class _Answer:
    """An answer that comes bit by bit, as an ASGI application."""

    def __init__(self, passed: Passed) -> None:
        self._passed = passed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the request, which was passed on already
        copying = asyncio.ensure_future(self._copy(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({copying, gone}, return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
        except ConnectionBroke as error:
            log.warning("an answer broke off: %s", error.message)  # and so does ours: that is how its reader knows
        finally:
            for task in (copying, gone):
                task.cancel()
            await asyncio.wait({copying, gone})
            self._passed.close()

    async def _copy(self, send: Send) -> None:
        headers = [pair for pair in self._passed.headers if pair[0] not in _NOT_PASSED_BACK]
        headers += [pair for pair in self._passed.headers if pair[0] == b"content-length"]
        await send({"type": "http.response.start", "status": self._passed.status, "headers": headers})
        async for data in self._passed.chunks():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
