"""Log responses: the last lines of a log, or a stream that follows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from aenv.errors import InstanceEnded, NotFound
from aenv.http.messages import Answer, Message, Receive, Scope, Send, Stream
from aenv.platform.request_context import RequestContext, number, ok

POLL_SECONDS = 0.25
"""Interval for polling the log."""

LogReader = Callable[[], str]
"""Returns the text added since its last call; raises InstanceEnded or NotFound once the log is complete."""


def log_answer(context: RequestContext, text: str, open_reader: Callable[[], LogReader]) -> Answer:
    """Return a log as requested: its last lines, or a stream that follows it. ``open_reader`` starts to watch it."""
    text = last_lines(text, number("tail", context.one("tail")))
    if context.one("follow") in (None, "", "0", "false"):
        return ok(text)
    return Stream(_LogStream(text, open_reader()))


def last_lines(text: str, count: int | None) -> str:
    """Return the last lines of a log; None: all."""
    return text if count is None else "".join(text.splitlines(keepends=True)[-count:] if count else ())


class _LogStream:
    def __init__(self, text: str, read_new: LogReader) -> None:
        self._text = text
        self._read_new = read_new

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        gone = asyncio.ensure_future(receive())
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            with contextlib.suppress(InstanceEnded, NotFound):  # the log is complete
                await self._follow(gone, send)
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _follow(self, gone: asyncio.Future[Message], send: Send) -> None:
        text = self._text
        while not gone.done():
            if text:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await asyncio.wait({gone}, timeout=POLL_SECONDS)
            text = self._read_new()
