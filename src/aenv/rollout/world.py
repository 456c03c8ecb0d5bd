"""Interface that an episode needs of the environment that it runs in. `aenv.Environment` has it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from aenv.authoring.results import ToolResult


class World(Protocol):
    """A running instance: tools for the agent, functions and a reward for the runner."""

    env_name: str

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools: ``name``, ``description`` and ``inputSchema``."""
        ...

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> ToolResult:
        """Call a tool; see `Environment.call_tool`."""
        ...

    def call_function(
        self, function_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> Awaitable[Any]:
        """Call a function; see `Environment.call_function`."""
        ...

    async def call_reward(
        self, arguments: dict[str, Any] | None = None, timeout: float | None = None, *, name: str | None = None
    ) -> Any:
        """Return the reward; see `Environment.call_reward`."""
        ...
