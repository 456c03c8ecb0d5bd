"""A model server on the loopback whose answers, good and bad, a test chooses."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """One answer."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Close the connection after half of the body."""
    never: bool = False
    """Do not answer at all."""


@dataclass
class ModelServer:
    """Where it is, and what it was asked."""

    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def as_json(document: Any, status: int = 200, **headers: str) -> Answer:
    return Answer(json.dumps(document).encode(), status, headers=headers)


def as_events(events: list[Any], *, done: bool = True) -> Answer:
    """Return a stream of server-sent events."""
    lines = [f"data: {json.dumps(event)}\n\n" for event in events] + (["data: [DONE]\n\n"] if done else [])
    return Answer("".join(lines).encode(), content_type="text/event-stream")


def chat(text: str | None = None, *calls: tuple[str, Any], usage: tuple[int, int] = (10, 5)) -> Answer:
    """Return an answer of Chat Completions."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"c{number}",
                "type": "function",
                "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
            }
            for number, (name, given) in enumerate(calls)
        ]
    return as_json(
        {
            "model": "m-1",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
            "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]},
        }
    )


@asynccontextmanager
async def model_server(
    answer: Callable[[dict[str, Any], int], Answer], tls: ssl.SSLContext | None = None
) -> AsyncIterator[ModelServer]:
    """Serve until the end of the block. ``answer`` gets the body of a request and its number, from 0."""
    serving: dict[asyncio.Task[Any] | None, asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving[asyncio.current_task()] = writer
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                found.asked.append(body)
                found.headers.append(headers)
                found.paths.append(first.split()[1])
                made = answer(body, len(found.asked) - 1)
                if made.never:
                    await reader.read()  # until the client gives up
                    return
                if not await _send(writer, made):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    found = ModelServer(f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1")
    try:
        yield found
    finally:
        server.close()
        for writer in serving.values():
            writer.close()
        await asyncio.gather(*(task for task in serving if task is not None))
        await server.wait_closed()


async def _send(writer: asyncio.StreamWriter, made: Answer) -> bool:
    """Return whether the connection stays open."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in made.headers.items())
    length = "" if made.cut else f"content-length: {len(made.body)}\r\n"
    writer.write(
        f"HTTP/1.1 {made.status} Made\r\ncontent-type: {made.content_type}\r\n{length}{more}\r\n".encode()
        + (made.body[: len(made.body) // 2] if made.cut else made.body)
    )
    await writer.drain()
    return not made.cut
