"""Tools of an environment as tools of LangChain agents and LangGraph graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aenv.adapters.agents.agent_tools import AgentTool, as_text, block_text, framework, has_images, tools_of
from aenv.authoring.results import ToolResult

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment


async def tools(env: Environment) -> list[Any]:
    """Return a StructuredTool for each tool, for ``invoke`` and ``ainvoke``. Images become image blocks."""
    langchain = framework("langchain_core.tools", "langchain")
    return [
        langchain.StructuredTool(
            name=tool.name,
            description=tool.description,
            args_schema=tool.schema,
            func=_blocking(tool),
            coroutine=_async(tool),
            handle_tool_error=False,  # errors of tools are results here; an exception is a fault of the infrastructure
        )
        for tool in await tools_of(env)
    ]


def _blocking(tool: AgentTool) -> Any:
    def call(**arguments: Any) -> Any:
        return _content(tool.call_blocking(arguments))

    return call


def _async(tool: AgentTool) -> Any:
    async def call(**arguments: Any) -> Any:
        return _content(await tool.call(arguments))

    return call


def _content(result: ToolResult) -> Any:
    if not has_images(result):
        return as_text(result)
    return [
        {"type": "image_url", "image_url": {"url": f"data:{block['mimeType']};base64,{block['data']}"}}
        if block.get("type") == "image"
        else {"type": "text", "text": block_text(block)}
        for block in result.content
    ]
