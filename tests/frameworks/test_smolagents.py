from __future__ import annotations

import asyncio
from typing import Any

from aenv import Environment, SyncEnvironment
from aenv.testing import ModelServer, calls
from tests.frameworks.agent_contract import AgentContract, needs

needs("smolagents", "smolagents")

from smolagents import OpenAIModel, ToolCallingAgent  # noqa: E402


class TestSmolagents(AgentContract):
    malformed, infra, images = "taken as the only argument", "read by the model", "named"

    def final(self, text: str) -> Any:
        return calls(("final_answer", {"answer": text}))

    async def ask(self, env: Environment, model: ModelServer, question: str) -> str:
        return str(await asyncio.to_thread(agent(model, await env.agent_tools("smolagents")).run, question))

    def ask_blocking(self, env: SyncEnvironment, model: ModelServer, question: str) -> str:
        return str(agent(model, env.agent_tools("smolagents")).run(question))


def agent(model: ModelServer, tools: list[Any]) -> Any:
    made = OpenAIModel("scripted", api_base=model.url, api_key="none")
    return ToolCallingAgent(tools=tools, model=made, verbosity_level=0, max_steps=5)
