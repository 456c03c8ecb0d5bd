"""Interface that an episode needs of the environment that it runs in. `aenv.Environment` has it."""

from __future__ import annotations

from typing import Any, Protocol

from aenv.trajectory.replay import ReplayWorld


class World(ReplayWorld, Protocol):
    """A running instance: tools for the agent, functions and a reward for the runner."""

    env_name: str

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools: ``name``, ``description`` and ``inputSchema``."""
        ...
