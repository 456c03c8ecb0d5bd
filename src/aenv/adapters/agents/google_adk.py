"""Tools of an environment as tools of Google's Agent Development Kit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aenv.adapters.agents.agent_tools import AgentTool, as_text, framework, tools_of

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment


async def tools(env: Environment) -> list[Any]:
    """Return a BaseTool for each tool, for ``Agent(tools=...)``."""
    adk, types = framework("google.adk.tools", "google-adk"), framework("google.genai.types", "google-adk")

    class AdkTool(adk.BaseTool):  # type: ignore[misc, name-defined]
        def __init__(self, tool: AgentTool) -> None:
            super().__init__(name=tool.name, description=tool.description)
            self._tool = tool

        def _get_declaration(self) -> Any:
            return types.FunctionDeclaration(
                name=self.name, description=self.description, parameters_json_schema=self._tool.schema
            )

        async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> dict[str, str]:
            result = await self._tool.call(args)
            return {"error" if result.is_error else "result": as_text(result)}

    return [AdkTool(tool) for tool in await tools_of(env)]
