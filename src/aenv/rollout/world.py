"""Interface that an episode needs of the environment that it runs in. `aenv.Environment` has it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from aenv.trajectory.replay import ReplayWorld


class World(ReplayWorld, Protocol):
    """A running instance: tools for the agent, functions and a reward for the runner."""

    env_name: str

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools: ``name``, ``description`` and ``inputSchema``."""
        ...


class WorldInFront:
    """An instance behind another interface: what a subclass does not answer itself, the instance does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.env_name = world.env_name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools of the instance."""
        return await self._world.list_tools()

    def call_function(
        self, function_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> Awaitable[Any]:
        """Call a function of the instance."""
        return self._world.call_function(function_name, arguments, timeout)

    async def call_reward(
        self, arguments: dict[str, Any] | None = None, timeout: float | None = None, *, name: str | None = None
    ) -> Any:
        """Return the reward of the instance."""
        return await self._world.call_reward(arguments, timeout, name=name)
