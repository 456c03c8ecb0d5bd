"""MCP over stdio in front of an instance: for hosts that start programs, and environments that run in sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aenv._version import __version__
from aenv.authoring.content import Content
from aenv.authoring.tool import Tool
from aenv.errors import AEnvError
from aenv.runtime.calls.endpoints import ToolOutcome
from aenv.runtime.mcp import MODERN, mcp_result
from aenv.runtime.mcp_generations import Report, ToolHandlers
from aenv.runtime.stdio import HostPipes, serve_handlers
from aenv.sdk.environment import Environment
from aenv.sdk.qualified_names import bare_name, split_env_name_version

if TYPE_CHECKING:
    import mcp.types as types


async def bridge(env_name: str, pipes: HostPipes) -> None:
    """Create an instance, and serve its tools until the host closes stdin."""
    async with Environment(env_name) as env:
        tools = await _tools(env)
        handlers = ToolHandlers(
            lambda protocol: [tool.get_mcp_tool(any_output=protocol >= MODERN) for tool in tools.values()],
            lambda name, arguments, report, protocol: _call(env, tools, name, arguments, report, protocol),
            lambda name: tools[name].inputSchema if name in tools else None,
        )
        name = split_env_name_version(env.env_name)[0]
        await serve_handlers(handlers, pipes, name=name, version=env.version or __version__)


async def _tools(env: Environment) -> dict[str, Tool]:
    made = {}
    for listed in await env.list_tools():
        name = bare_name(env.env_name, listed["name"])
        made[name] = Tool.model_validate({**listed, "name": name})
    return made


async def _call(
    env: Environment, tools: dict[str, Tool], name: str, arguments: dict[str, Any], report: Report, protocol: str
) -> types.CallToolResult:
    """Call a tool. A failure of the instance is a result too: a host has no other way to show it."""
    schema = tools[name].outputSchema if name in tools else None
    try:
        result = await env.call_tool(name, arguments, on_progress=report)
    except AEnvError as error:
        failed = Content([{"type": "text", "text": f"{name}: {error.message}"}], is_error=True)
        outcome = ToolOutcome(failed, error.fault)
    else:
        content = Content(
            result.content, is_json=result.is_json, is_error=result.is_error, structured=result.structured
        )
        outcome = ToolOutcome(content, result.fault)
    return mcp_result(name, outcome, schema, any_json=protocol >= MODERN)
