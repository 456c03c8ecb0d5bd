from __future__ import annotations

from typing import Any

from aenv import Environment, SyncEnvironment
from aenv.testing import ModelServer
from tests.frameworks.agent_contract import AgentContract, needs

needs("langchain.agents", "langchain")
needs("langchain_openai", "langchain")

from langchain.agents import create_agent  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402


class TestLangChain(AgentContract):
    malformed = "ends the run"

    async def ask(self, env: Environment, model: ModelServer, question: str) -> str:
        done = await agent(model, await env.agent_tools("langchain")).ainvoke(asking(question))
        return str(done["messages"][-1].content)

    def ask_blocking(self, env: SyncEnvironment, model: ModelServer, question: str) -> str:
        done = agent(model, env.agent_tools("langchain")).invoke(asking(question))
        return str(done["messages"][-1].content)


def asking(question: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}]}


def agent(model: ModelServer, tools: list[Any]) -> Any:
    return create_agent(ChatOpenAI(model="scripted", base_url=model.url, api_key="none"), tools)
