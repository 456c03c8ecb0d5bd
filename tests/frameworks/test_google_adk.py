from __future__ import annotations

from aenv import Environment
from aenv.testing import ModelServer
from tests.frameworks.agent_contract import AgentContract, needs

needs("google.adk.agents", "google-adk")
needs("litellm", "google-adk")

from google.adk.agents import Agent  # noqa: E402
from google.adk.models.lite_llm import LiteLlm  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402


class TestGoogleADK(AgentContract):
    malformed, images = "ends the run", "named"

    async def ask(self, env: Environment, model: ModelServer, question: str) -> str:
        made = LiteLlm(model="openai/scripted", api_base=model.url, api_key="none")
        agent = Agent(name="butler", model=made, instruction="Help.", tools=await env.agent_tools("google-adk"))
        events = await InMemoryRunner(agent=agent).run_debug(question, quiet=True)
        return "".join(part.text or "" for part in events[-1].content.parts)
