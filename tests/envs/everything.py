"""One of everything that an author may declare."""

from __future__ import annotations

import asyncio
import enum
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from aenv import (
    Image,
    ToolResult,
    current_call,
    register_function,
    register_health,
    register_reward,
    register_tool,
)

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
calls: list[str] = []


class Query(BaseModel):
    query: str
    max_results: int = 10


class Found(BaseModel):
    query: str
    results: list[str]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int


@register_tool
def echo(content: str) -> dict:
    """Give back what came in.

    Args:
        content: Anything at all
            on two lines.

    Returns:
        The same in a dict.
    """
    return {"result": content}


@register_tool
async def echo_async(content: str) -> dict:
    return {"result": content}


@register_tool(name="renamed", description="A description of its own.")
def original_name(x: int = 1) -> int:
    """Not shown."""
    return x


@register_tool
def kinds(
    s: str,
    i: int,
    f: float,
    b: bool,
    tags: list[str],
    maybe: str | None = None,
    options: dict[str, Any] | None = None,
    color: Color = Color.RED,
    mode: Literal["fast", "slow"] = "fast",
    timeout=60,
) -> dict:
    return {
        "s": s, "i": i, "f": f, "b": b, "tags": tags, "maybe": maybe, "options": options,
        "color": color, "mode": mode, "timeout": timeout,
    }  # fmt: skip


@register_tool
def search(params: Query) -> Found:
    return Found(query=params.query, results=["a"] * params.max_results)


@register_tool
def give(what: str) -> Any:
    return {
        "empty": "", "none": None, "list": ["a", "b"], "number": 2, "true": True, "dict": {"a": [1, None]},
        "bytes": b"\x00\x01", "png": PNG, "image": Image(PNG), "mixed": ["look:", Image(PNG)], "point": Point(1, 2),
        "unicode": "héllo ☃", "result": ToolResult([{"type": "text", "text": "mine"}], is_error=True),
        "model": Found(query="q", results=[]), "nan": {"v": float("nan")},
    }[what]  # fmt: skip


@register_tool
def give_mcp() -> Any:
    from mcp.types import ImageContent, TextContent

    return [TextContent(text="hello"), ImageContent(data="AAAA", mime_type="image/png")]


@register_tool
def unserialisable() -> Any:
    return threading.Lock()


@register_tool
def breaks_its_word() -> Found:
    return None  # type: ignore[return-value]


@register_tool
def fails(message: str = "the author's words") -> str:
    raise RuntimeError(message)


@register_tool
def quits() -> str:
    sys.exit(3)


@register_tool
def nap(seconds: float) -> str:
    calls.append("nap")
    time.sleep(seconds)
    return "slept"


@register_tool
async def nap_async(seconds: float) -> str:
    calls.append("nap_async started")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        calls.append("nap_async cancelled")
        raise
    return "slept"


@register_tool
async def blocks(seconds: float) -> str:
    time.sleep(seconds)  # what an author should not do
    return "blocked"


@register_tool
def wait_for_cancel(seconds: float = 30) -> str:
    calls.append("wait_for_cancel started")
    call = current_call()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if call.cancelled:
            calls.append("wait_for_cancel cancelled")
            return "cancelled"
        time.sleep(0.01)
    return "not cancelled"


@register_tool
def progresses(steps: int) -> int:
    for step in range(steps):
        current_call().progress(step + 1, steps, f"step {step + 1}")
    return steps


@register_tool
def count(key: str) -> int:
    """How often this was called with that key."""
    calls.append(key)
    return calls.count(key)


@register_tool
def variable(name: str) -> str | None:
    return os.environ.get(name)


@register_tool
def arguments() -> list[str]:
    return sys.argv[1:]


@register_tool(hidden=True)
def hidden() -> str:
    return "found"


@register_function
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@register_function
async def add_async(a: int, b: int = 1) -> int:
    return a + b


@register_function(endpoint="/custom/greet", method="GET")
def greet(name: str, times: int = 1, tags: list[str] = []) -> dict:  # noqa: B006
    return {"greeting": f"hello {name}" * times, "tags": tags}


@register_function
def fails_too() -> None:
    raise ValueError("no good")


@register_function
def get_calls() -> list[str]:
    return calls


@register_function
def nap_function(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


@register_reward
def completion(status: dict) -> float:
    """1 when it is completed."""
    return 1.0 if status.get("completed") else 0.0


@register_health
def health(depth: int = 0) -> dict:
    return {"status": "healthy", "depth": depth, "mine": True}
