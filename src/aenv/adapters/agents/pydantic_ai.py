"""Tools of an environment as tools of Pydantic AI agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aenv.adapters.agents.agent_tools import (
    AgentTool,
    as_text,
    block_text,
    framework,
    has_images,
    image_bytes,
    tools_of,
)

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment


async def tools(env: Environment) -> list[Any]:
    """Return a Tool for each tool, for ``Agent(tools=...)``. Images become binary content."""
    pydantic_ai = framework("pydantic_ai", "pydantic-ai")
    return [
        pydantic_ai.Tool.from_schema(_function(tool, pydantic_ai), tool.name, tool.description, tool.schema)
        for tool in await tools_of(env)
    ]


def _function(tool: AgentTool, pydantic_ai: Any) -> Any:
    async def call(**arguments: Any) -> Any:
        result = await tool.call(arguments)
        if not has_images(result):
            return as_text(result)
        return [
            pydantic_ai.BinaryContent(data=image_bytes(block), media_type=block["mimeType"])
            if block.get("type") == "image"
            else block_text(block)
            for block in result.content
        ]

    return call
