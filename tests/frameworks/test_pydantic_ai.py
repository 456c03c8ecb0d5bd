from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aenv import Environment, SyncEnvironment
from aenv.testing import ModelServer
from tests.frameworks.agent_contract import AgentContract, needs
from tests.frameworks.agent_module import check_agent_as_environment

needs("pydantic_ai", "pydantic-ai")

from pydantic_ai import Agent  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402


class TestPydanticAI(AgentContract):
    async def ask(self, env: Environment, model: ModelServer, question: str) -> str:
        return str((await agent(model, await env.agent_tools("pydantic-ai")).run(question)).output)

    def ask_blocking(self, env: SyncEnvironment, model: ModelServer, question: str) -> str:
        return str(agent(model, env.agent_tools("pydantic-ai")).run_sync(question).output)


def agent(model: ModelServer, tools: list[Any]) -> Any:
    provider = OpenAIProvider(base_url=model.url, api_key="none")
    return Agent(OpenAIChatModel("scripted", provider=provider), tools=tools)


WRAPPED = """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

agent = Agent(OpenAIChatModel("scripted", provider=OpenAIProvider(base_url="URL", api_key="none")))
"""


def test_an_agent_is_an_environment_with_a_memory_for_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_agent_as_environment(WRAPPED, tmp_path, monkeypatch)
