"""The tools of an environment, for agents: names that model APIs accept, and calls with JSON text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aenv.authoring.results import ToolResult
from aenv.rollout.world import World
from aenv.sdk.model_formats import OpenAIChat, accepted_names
from aenv.sdk.model_tools import call_with_text
from aenv.sdk.qualified_names import bare_name

_CHAT = OpenAIChat()


class Tools:
    """Tools as a model sees them."""

    def __init__(self, env_name: str, listed: list[dict[str, Any]]) -> None:
        bare = [bare_name(env_name, tool["name"]) for tool in listed]
        names = accepted_names(bare)
        self._own = dict(zip(names, bare, strict=True)) | {name: name for name in bare}
        self.definitions = _CHAT.definitions([{**tool, "name": name} for name, tool in zip(names, listed, strict=True)])
        """The tools in the format of OpenAI's Chat Completions."""

    async def call(
        self, env: World, tool: str, arguments: Mapping[str, Any] | str | None, timeout: float
    ) -> ToolResult:
        """Call a tool by the name that a model knows. A name or arguments that are wrong give an error result."""
        given = arguments if isinstance(arguments, str) or arguments is None else dict(arguments)
        return await call_with_text(env, self.own_name(tool), given, timeout, shown=tool)

    def own_name(self, tool: str) -> str:
        """Return the environment's name of a tool that a model knows by another; an unknown name as it is."""
        return self._own.get(tool, tool)
