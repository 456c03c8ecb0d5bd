"""Iterate over an async generator from code that has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import TypeVar

from aenv.sdk.blocking import LoopThread

T = TypeVar("T")


def iterate(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of ``items``, which runs on the event loop of the blocking SDK. Ctrl-C ends it."""

    async def following() -> tuple[T] | None:
        async for item in items:
            return (item,)
        return None

    try:
        while True:
            found = LoopThread.run(following())
            if found is None:
                return
            yield found[0]
    finally:
        LoopThread.run(_close(items))


async def _close(items: AsyncGenerator[T, None]) -> None:
    """Close the generator, when an interrupted step has cleaned up after itself."""
    while items.ag_running:  # type: ignore[attr-defined]  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # no event tells
    await items.aclose()
