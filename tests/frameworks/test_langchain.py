from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aenv import Environment, SyncEnvironment
from aenv.testing import ModelServer
from tests.frameworks.agent_contract import AgentContract, needs
from tests.frameworks.agent_module import check_agent_as_environment

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


WRAPPED = """
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

agent = create_agent(ChatOpenAI(model="scripted", base_url="URL", api_key="none"), tools=[])
"""


def test_an_agent_is_an_environment_with_a_memory_for_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_agent_as_environment(WRAPPED, tmp_path, monkeypatch)
