"""The MCP endpoint of an instance, by the official SDK: stateless 2026-07-28 and the older handshake.

Importing the SDK costs about a second of CPU, so it happens on the first request to /mcp, in a thread, or earlier
where a preloaded parent warms up. `aenv.runtime.mcp_generations` hides which generation of the SDK is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from aenv.authoring.call import Call
from aenv.authoring.content import Content
from aenv.authoring.output_schema import fits, is_object, is_wrapped
from aenv.authoring.signature import Signature
from aenv.runtime.calls.endpoints import ToolOutcome
from aenv.runtime.mcp_generations import Report, ToolHandlers, session_manager

if TYPE_CHECKING:
    import mcp.types as types

    from aenv.http.messages import ASGIApp, Message, Receive, Scope, Send
    from aenv.runtime.calls.endpoints import EndpointCatalog

FAULT_META = "aenv/fault"
MODERN = "2026-07-28"


class McpEndpoint:
    """Starts the SDK's session manager on the first request, in a task of its own."""

    def __init__(self, catalog: EndpointCatalog, *, name: str, version: str, max_body: int) -> None:
        self._catalog = catalog
        self._name = name
        self._version = version
        self._max_body = max_body
        self._app: ASGIApp | None = None
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def ready(self) -> ASGIApp:
        """Return the application that answers /mcp."""
        if self._app is None:
            async with self._starting:
                if self._app is None:
                    self._app = await self._start()
        return self._app

    async def _start(self) -> ASGIApp:
        manager = await asyncio.to_thread(self._build)
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            async with manager.run():
                started.set_result(None)
                await self._stop.wait()

        self._task = asyncio.create_task(run())
        await started
        app: ASGIApp = manager.handle_request
        return _plain_when_possible(app)

    def _build(self) -> Any:
        return session_manager(self._name, self._version, self.handlers, max_body=self._max_body)

    @property
    def handlers(self) -> ToolHandlers:
        """Functions for an MCP server on another transport."""
        return ToolHandlers(self._list_tools, self._call_tool, self._catalog.input_schema)

    async def close(self) -> None:
        """End all sessions."""
        self._stop.set()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _list_tools(self, protocol: str) -> list[Any]:
        return [tool.get_mcp_tool(any_output=protocol >= MODERN) for tool in self._catalog.listed_tools]

    async def _call_tool(
        self, name: str, arguments: dict[str, Any], report: Report, protocol: str
    ) -> types.CallToolResult:
        loop = asyncio.get_running_loop()
        sending: set[asyncio.Task[None]] = set()

        def send(done: float, total: float | None, message: str | None) -> None:
            task = asyncio.ensure_future(report(done, total, message))
            sending.add(task)
            task.add_done_callback(sending.discard)

        def progress(done: float, total: float | None, message: str | None) -> None:
            loop.call_soon_threadsafe(send, done, total, message)  # tools run in other threads

        def read(signature: Signature) -> dict[str, Any]:
            return signature.validate(arguments)

        outcome = await self._catalog.call_tool(name, read, Call(name, progress))
        await asyncio.sleep(0)  # progress of a brief tool is still on its way to the loop
        while sending:  # progress that comes after the result would be a protocol error
            await asyncio.gather(*sending, return_exceptions=True)
        return mcp_result(name, outcome, self._catalog.output_schema(name), any_json=protocol >= MODERN)


_EVENT = b'event: message\r\ndata: {"jsonrpc":"2.0","id":'
_STREAM_HEADERS = (b"content-type", b"content-length", b"cache-control", b"connection", b"x-accel-buffering")


def _plain_when_possible(app: ASGIApp) -> ASGIApp:
    """Send an event stream whose first event is already the answer as plain JSON.

    With the older protocol the SDK answers with a stream even where nothing is streamed. Clients then disconnect after
    every call, and refuse events over 1 MB.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None
        answered = False

        async def hold(message: Message) -> None:
            nonlocal start, answered
            if answered:
                return
            if message["type"] == "http.response.start" and _is_stream(message):
                start = message
                return
            if start is None:
                await send(message)
                return
            body = message.get("body", b"")
            if body.startswith(_EVENT) and body.endswith(b"}\r\n\r\n") and body.count(b"\n", 0, 64) == 1:
                answered = True
                text = memoryview(body)[len(b"event: message\r\ndata: ") : -4].tobytes()
                kept = [(name, value) for name, value in start["headers"] if name.lower() not in _STREAM_HEADERS]
                headers = [*kept, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
                await send({**start, "headers": headers})
                await send({"type": "http.response.body", "body": text})
            else:
                first, start = start, None
                await send(first)
                await send(message)

        await app(scope, receive, hold if scope["method"] == "POST" else send)

    return answer


def _is_stream(message: Message) -> bool:
    return any(name.lower() == b"content-type" and b"event-stream" in value for name, value in message["headers"])


def mcp_result(
    name: str, outcome: ToolOutcome, schema: dict[str, Any] | None, *, any_json: bool
) -> types.CallToolResult:
    """Return the MCP result. Before protocol 2026-07-28 structured content had to be an object."""
    from mcp.types import CallToolResult

    content = outcome.content
    structured = content.structured
    value = _value(content)
    if schema is not None and not is_object(schema) and structured is None and not content.is_error:
        if not fits(schema, value):
            return mcp_result(name, _misfit(name, value, schema), None, any_json=any_json)
        structured = {"result": value} if is_wrapped(schema, any_output=any_json) else value
    elif content.is_json:
        structured = value if any_json or isinstance(value, dict) else None
    return CallToolResult.model_validate(
        {
            "content": content.blocks,
            "structuredContent": structured,
            "isError": content.is_error,
            "_meta": {FAULT_META: outcome.fault} if outcome.fault else None,
        }
    )


def _value(content: Content) -> Any:
    """Return the value that the tool returned; None if it is content of another kind than text."""
    if len(content.blocks) != 1 or content.blocks[0].get("type") != "text":
        return None
    text = content.blocks[0]["text"]
    return from_json(text) if content.is_json else text


def _misfit(name: str, value: Any, schema: dict[str, Any]) -> ToolOutcome:
    """Return the error in place of a result that MCP clients reject, since it is not of the annotated type."""
    text = f"Error calling tool '{name}': it returned {value!r:.80}, which its annotation does not allow ({schema})"
    return ToolOutcome(Content([{"type": "text", "text": text}], is_error=True), "env")
