"""Tools of an environment as tools of CAMEL agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aenv.adapters.agents.agent_tools import AgentTool, framework, tools_of

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment


async def tools(env: Environment) -> list[Any]:
    """Return a FunctionTool for each tool, for ``ChatAgent(tools=...)`` and both ``step`` and ``astep``."""
    toolkits = framework("camel.toolkits", "camel")
    return [toolkits.FunctionTool(_function(tool), openai_tool_schema=_schema(tool)) for tool in await tools_of(env)]


def _function(tool: AgentTool) -> Any:
    """Return a blocking function: CAMEL runs those in a thread in ``astep``, and as they are in ``step``."""

    def call(**arguments: Any) -> str:
        return tool.text_blocking(arguments)

    call.__name__ = tool.name
    return call


def _schema(tool: AgentTool) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": described}
