"""The world of an episode that is no instance of an environment."""

from __future__ import annotations

from typing import Any

from aenv.authoring.results import ToolResult
from aenv.errors import NotFound


class BareWorld:
    """Base class: no tools and no functions, unless a subclass has them. A subclass has ``call_reward``."""

    def __init__(self, name: str) -> None:
        self.env_name = name

    async def list_tools(self) -> list[dict[str, Any]]:
        return []

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> ToolResult:
        raise NotFound(f"no tool '{tool_name}' in this environment; there are: none")

    async def call_function(
        self, function_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> Any:
        raise NotFound(f"no function '{function_name}' in this environment; there are: none")
