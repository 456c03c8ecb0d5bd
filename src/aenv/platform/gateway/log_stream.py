"""A log that is followed: what is there, and what is added to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from aenv.errors import InstanceEnded, NotFound
from aenv.http.messages import Answer, Message, Receive, Scope, Send, Stream
from aenv.platform.request_context import RequestContext, number, ok

SECONDS = 0.25
"""How often it is looked at."""

News = Callable[[], str]
"""What was added since it was called last; raises InstanceEnded or NotFound when there will be no more."""


def log_answer(ask: RequestContext, text: str, news: Callable[[], News]) -> Answer:
    """A log as it was asked for: the last lines of it, or on and on. ``news`` begins to watch it."""
    text = last_lines(text, number("tail", ask.one("tail")))
    if ask.one("follow") in (None, "", "0", "false"):
        return ok(text)
    return Stream(_Following(text, news()))


def last_lines(text: str, count: int | None) -> str:
    """So many lines of a log; None: all."""
    return text if count is None else "".join(text.splitlines(keepends=True)[-count:] if count else ())


class _Following:
    def __init__(self, text: str, news: News) -> None:
        self._text = text
        self._news = news

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        gone = asyncio.ensure_future(receive())
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            with contextlib.suppress(InstanceEnded, NotFound):  # there will be no more of it
                await self._follow(gone, send)
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _follow(self, gone: asyncio.Future[Message], send: Send) -> None:
        text = self._text
        while not gone.done():
            if text:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await asyncio.wait({gone}, timeout=SECONDS)
            text = self._news()
