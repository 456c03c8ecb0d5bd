from __future__ import annotations

from typing import Any

from aenv import Environment
from aenv.testing import ModelServer
from tests.frameworks.agent_contract import AgentContract, needs

needs("agents", "agents")

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner  # noqa: E402
from openai import AsyncOpenAI  # noqa: E402


class TestOpenAIAgents(AgentContract):
    images = "shown with the Responses API"

    async def ask(self, env: Environment, model: ModelServer, question: str) -> str:
        async with AsyncOpenAI(base_url=model.url, api_key="none") as client:
            made: Any = OpenAIChatCompletionsModel("scripted", client)
            agent = Agent(name="butler", model=made, tools=await env.agent_tools("openai-agents"))
            done = await Runner.run(agent, question, run_config=RunConfig(tracing_disabled=True))
            return str(done.final_output)
