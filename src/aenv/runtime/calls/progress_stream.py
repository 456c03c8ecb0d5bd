"""A tool call whose answer is a stream: a line of JSON for each report of progress, then one with the result."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pydantic_core import to_json

from aenv.authoring.call import Progress
from aenv.schema import paths

if TYPE_CHECKING:
    from aenv.http.messages import ASGIApp, Receive, Scope, Send

MAX_PENDING = 1000
"""Reports to keep for a client that reads slowly; older ones are dropped."""


def progress_stream(call: Callable[[Progress], Awaitable[bytes]]) -> ASGIApp:
    """Return the ASGI application of one call. ``call``: runs it, and returns the JSON of its response."""

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        pending: deque[bytes] = deque(maxlen=MAX_PENDING)
        news = asyncio.Event()

        def add(line: bytes) -> None:
            pending.append(line)
            news.set()

        def report(done: float, total: float | None, message: str | None) -> None:
            line = to_json({"progress": {"done": done, "total": total, "message": message}}, fallback=str)
            loop.call_soon_threadsafe(add, line)  # tools run in other threads

        async def run() -> bytes:
            try:
                return await call(report)
            finally:
                loop.call_soon(news.set)  # after the reports that are on their way

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            running.cancel()

        running = asyncio.create_task(run())
        watching = asyncio.create_task(watch())
        try:
            headers = [(b"content-type", paths.LINES.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not running.done() or pending:
                await news.wait()
                news.clear()
                while pending:
                    await send({"type": "http.response.body", "body": pending.popleft() + b"\n", "more_body": True})
            await send({"type": "http.response.body", "body": await running + b"\n"})
        finally:
            watching.cancel()
            running.cancel()
            await asyncio.gather(watching, running, return_exceptions=True)

    return stream
