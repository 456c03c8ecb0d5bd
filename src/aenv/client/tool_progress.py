"""Reading a tool call whose answer is a stream of reports of progress."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic_core import from_json

OnProgress = Callable[[float, float | None, str | None], object]
"""Called with amount done, total if known, and message, for each report; it may be a coroutine function."""


async def read_progress(chunks: AsyncIterator[bytes], on_progress: OnProgress) -> Any:
    """Call ``on_progress`` for each report, and return the last line of the stream: the response itself."""
    rest = b""
    last: Any = None
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else [rest + chunk]
        for line in lines:
            last = from_json(line)
            report = last.get("progress")
            if report is not None:
                answer = on_progress(report["done"], report["total"], report["message"])
                if inspect.isawaitable(answer):
                    await answer
    return last
