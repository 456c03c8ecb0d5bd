"""Tools of an environment as tools of the Claude Agent SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aenv.adapters.agents.agent_tools import AgentTool, block_text, framework, tools_of

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment


async def tools(env: Environment) -> list[Any]:
    """Return an SdkMcpTool for each tool, for ``create_sdk_mcp_server(name, tools=...)``. Images are shown."""
    sdk = framework("claude_agent_sdk", "claude-agent-sdk")
    return [sdk.tool(tool.name, tool.description, tool.schema)(_handler(tool)) for tool in await tools_of(env)]


def _handler(tool: AgentTool) -> Any:
    async def handle(arguments: dict[str, Any]) -> dict[str, Any]:
        result = await tool.call(arguments)
        return {"content": [_block(block) for block in result.content], "is_error": result.is_error}

    return handle


def _block(block: dict[str, Any]) -> dict[str, Any]:
    return block if block.get("type") in ("text", "image") else {"type": "text", "text": block_text(block)}
