"""An environment with whatever a client may meet."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel

from aenv import Audio, Image, current_call, register_reward, register_tool

PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
WAV = b"RIFF\x04\x00\x00\x00WAVE"


class Place(BaseModel):
    name: str
    population: int | None = None


A_RESULT = {"content": [{"type": "text", "text": "a result"}], "structuredContent": {"a": 1}}
"""By the names of the wire: those of the classes differ between releases of the SDK."""


@register_tool
def search(query: str, limit: int = 10, tags: list[str] | None = None) -> dict[str, Any]:
    """Find pages.

    Args:
        query: What to look for
        limit: The most that may be found
    """
    return {"query": query, "limit": limit, "tags": tags}


@register_tool(description="A description of its own.")
def find_place(name: str) -> Place:
    """Not shown."""
    return Place(name=name, population=7)


@register_tool
def give(what: str) -> Any:
    """Return a value of the kind that is asked for."""
    return {
        "str": "héllo ☃",
        "empty": "",
        "list": ["a", 1, None],
        "number": 2,
        "none": None,
        "image": Image(PNG),
        "audio": Audio(WAV),
        "mixed": ["look:", Image(PNG)],
        "block": TextContent(type="text", text="a block"),
        "result": CallToolResult.model_validate(A_RESULT | {"isError": True}),
    }[what]


@register_tool
def picture() -> Image:
    """Return a picture, and say so in the signature."""
    return Image(PNG)


@register_tool
def explicit() -> CallToolResult:
    """Return what MCP has, and say so in the signature."""
    return CallToolResult.model_validate(A_RESULT)


@register_tool
def fails() -> str:
    """Raise."""
    raise ValueError("the author's words")


@register_tool
def progresses(steps: int) -> int:
    """Report every step, from a thread."""
    for step in range(steps):
        current_call().progress(step + 1, steps, f"step {step + 1}")
    return steps


@register_tool
async def progresses_async(steps: int) -> int:
    """Report every step, from a coroutine."""
    for step in range(steps):
        current_call().progress(step + 1, steps, f"step {step + 1}")
        await asyncio.sleep(0)
    return steps


cancelled: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
given_up: list[str] = []


@register_tool
async def hang(key: str) -> str:
    """Never return."""
    current_call().progress(0, None, "begun")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled[key].set()
        raise
    return "never"


@register_tool
async def wait_for_cancellation(key: str) -> str:
    """Return when the call of `hang` with that key was cancelled."""
    await cancelled[key].wait()
    return "cancelled"


@register_tool
def hang_in_thread(key: str) -> str:
    """Return only when nobody waits for it."""
    call = current_call()
    call.progress(0, None, "begun")
    while not call.cancelled:
        time.sleep(0.001)
    given_up.append(key)
    return "never seen"


@register_tool
def wait_for_giving_up(key: str) -> str:
    """Return when `hang_in_thread` with that key noticed."""
    while key not in given_up:
        time.sleep(0.001)
    return "given up"


class Grade(Enum):
    GOOD = "good"
    POOR = "poor"


@dataclass
class Order:
    at: datetime
    price: Decimal
    file: Path
    grade: Grade
    tags: set[str]
    raw: bytes


@register_tool
def order() -> Order:
    """Return values that JSON does not have."""
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return Order(at, Decimal("12.50"), Path("/a/b"), Grade.GOOD, {"x"}, b"\x00\x01")


@register_tool
def due() -> datetime:
    """Return a time."""
    return datetime(2026, 1, 2, tzinfo=UTC)


@register_tool
def grade() -> Grade:
    """Return a member of an enum."""
    return Grade.POOR


@register_tool
def maybe(there: bool) -> int | None:
    """Return a number, or nothing."""
    return 3 if there else None


@register_tool
def words() -> list[str]:
    """Return a list."""
    return ["a", "b"]


@register_tool
def lies() -> int:
    """Return something else than the annotation says."""
    return "three"  # type: ignore[return-value]


@register_tool
def count_letters(text: str) -> int:
    """Take a long text."""
    return len(text)


@register_tool
def repeat(text: str, times: int) -> str:
    """Return a long text."""
    return text * times


@register_tool(hidden=True)
def hidden() -> str:
    """Callable, and not listed."""
    return "found"


@register_reward
def reward() -> float:
    """Not a tool."""
    return 1.0
