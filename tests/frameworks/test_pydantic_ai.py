from __future__ import annotations

from typing import Any

from aenv import Environment, SyncEnvironment
from aenv.testing import ModelServer
from tests.frameworks.agent_contract import AgentContract, needs

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
