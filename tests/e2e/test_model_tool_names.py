"""Names of tools for models do not depend on how the environment was named."""

from __future__ import annotations

import pytest

from aenv import Environment
from tests.conftest import run
from tests.local.conftest import _use_platform as _use_platform
from tests.local.conftest import platform as platform


@pytest.mark.parametrize("name", ["mini-terminal", "mini-terminal@^1.0", "mini-terminal@1.0.1"])
def test_models_see_bare_names_whatever_version_was_asked_for(name: str) -> None:
    async def main() -> tuple[set[str], set[str]]:
        async with Environment(name) as env:
            chat = await env.tools_for("openai-chat")
            agents = await env.list_openai_tools()
            return {tool["function"]["name"] for tool in chat.definitions}, {tool.name for tool in agents}

    chat, agents = run(main())
    assert "execute_command" in chat
    assert chat == agents
