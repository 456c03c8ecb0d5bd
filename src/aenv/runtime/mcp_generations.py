"""Construct an MCP server with either generation of the MCP SDK.

The SDK lives in the caller's environment, where other packages pin it: some need 1.x, some exactly 2.0. The two
generations register handlers and report progress differently; everything else here is the same. Generation 1 speaks the
protocol up to 2025-11-25, generation 2 also 2026-07-28. Only this module, `aenv.runtime.mcp` and `aenv.runtime.stdio`
import the SDK.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

IDLE_SECONDS = 1800.0
"""Idle timeout of a session, for releases whose default is none; newer ones have this default."""

Report = Callable[[float, float | None, str | None], Awaitable[None]]
"""Send a progress notification for the request being served: done, total, message."""


@dataclass(frozen=True, slots=True)
class ToolHandlers:
    """Functions of an environment that an MCP server calls."""

    list_tools: Callable[[str], list[Any]]
    """Protocol version (empty before it is known) to tools."""
    call_tool: Callable[[str, dict[str, Any], Report, str], Awaitable[Any]]
    """Name, arguments, progress, protocol version (empty before it is known) to a ``CallToolResult``."""
    input_schema: Callable[[str], Any]


def session_manager(name: str, version: str, handlers: ToolHandlers, *, max_body: int) -> Any:
    """Build the SDK's session manager, whichever generation is installed."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    server = build_server(name, version, handlers)
    accepted = inspect.signature(StreamableHTTPSessionManager.__init__).parameters
    options: dict[str, Any] = {}
    if "max_request_body_size" in accepted:  # our own HTTP server bounds the body in any case
        options["max_request_body_size"] = max_body
    if "session_idle_timeout" in accepted and accepted["session_idle_timeout"].default is None:
        options["session_idle_timeout"] = IDLE_SECONDS
    return StreamableHTTPSessionManager(server, **options)


def build_server(name: str, version: str, handlers: ToolHandlers) -> Any:
    """Build the SDK's server, whichever generation is installed."""
    from mcp.server.lowlevel import Server

    known = inspect.signature(Server.__init__).parameters
    build = _second_generation if "on_call_tool" in known else _first_generation
    return build(Server, name, version, handlers)


def _second_generation(server: Any, name: str, version: str, handlers: ToolHandlers) -> Any:
    from mcp.types import ListToolsResult

    async def list_tools(ctx: Any, params: Any) -> Any:
        return ListToolsResult(tools=handlers.list_tools(ctx.protocol_version))

    async def call_tool(ctx: Any, params: Any) -> Any:
        report = ctx.session.report_progress
        return await handlers.call_tool(params.name, params.arguments or {}, report, ctx.protocol_version)

    options: dict[str, Any] = {"version": version, "on_list_tools": list_tools, "on_call_tool": call_tool}
    if "get_tool_input_schema" in inspect.signature(server.__init__).parameters:  # from 2.1 on
        options["get_tool_input_schema"] = handlers.input_schema
    return server(name, **options)


def _first_generation(server: Any, name: str, version: str, handlers: ToolHandlers) -> Any:
    types: Any = import_module("mcp.types")  # its names differ from those that the type checker sees
    made = server(name, version=version)

    async def list_tools(request: Any) -> Any:
        return types.ServerResult(types.ListToolsResult(tools=handlers.list_tools("")))

    async def call_tool(request: Any) -> Any:
        context = made.request_context
        token = context.meta.progressToken if context.meta is not None else None

        async def report(done: float, total: float | None, message: str | None) -> None:
            if token is not None:
                await context.session.send_progress_notification(token, done, total, message, str(context.request_id))

        params = request.params
        return types.ServerResult(await handlers.call_tool(params.name, params.arguments or {}, report, ""))

    # Not the SDK's decorators: they validate arguments and results a second time, each against a JSON Schema.
    made.request_handlers[types.ListToolsRequest] = list_tools
    made.request_handlers[types.CallToolRequest] = call_tool
    return made
