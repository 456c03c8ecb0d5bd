"""Agents as environments: functions, objects with run, and an agent of the OpenAI Agents SDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from aenv import SyncEnvironment
from aenv.adapters.agents.agent_environment import register_agent
from aenv.errors import UsageError
from aenv.testing import running
from tests.frameworks.agent_module import check_agent_as_environment

FUNCTIONS = {
    "a function": "def agent(conversation):\n    return f'{len(conversation)}: {conversation[-1][\"content\"]}'",
    "a coroutine function": (
        "async def agent(conversation):\n    return f'{len(conversation)}: {conversation[-1][\"content\"]}'"
    ),
    "a callable object": (
        "class Agent:\n    def __call__(self, conversation):\n"
        "        return f'{len(conversation)}: {conversation[-1][\"content\"]}'\nagent = Agent()"
    ),
}
REGISTER = "\nfrom aenv.adapters.agents.agent_environment import register_agent\nregister_agent(agent, name='parrot')\n"


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_of_the_conversation_is_an_agent(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parrot.py").write_text(FUNCTIONS[kind] + REGISTER)
    with running(tmp_path / "parrot.py", log=tmp_path / "log") as server:
        monkeypatch.setenv("AENV_INSTANCE_URL", server.url)
        with SyncEnvironment("parrot@1.0.0") as env:
            tools = {tool["name"].rpartition("/")[2]: tool for tool in env.list_tools()}
            assert set(tools) == {"chat", "reset"}
            assert "the parrot" in tools["chat"]["description"]
            assert env.call_tool("chat", {"message": "hello", "session": "a"}).text == "1: hello"
            assert env.call_tool("chat", {"message": "again", "session": "a"}).text == "3: again"
            assert env.call_tool("chat", {"message": "hello", "session": "b"}).text == "1: hello"
            assert env.call_tool("reset", {"session": "a"}).text == "Forgot 4 messages."
            assert env.call_tool("chat", {"message": "new", "session": "a"}).text == "1: new"
            assert env.call_function("usage")["requests"] == 4


def test_an_object_with_an_async_run_is_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "class Agent:\n    async def run(self, message):\n        return message.upper()\nagent = Agent()"
    (tmp_path / "shouter.py").write_text(code + REGISTER)
    with running(tmp_path / "shouter.py", log=tmp_path / "log") as server:
        monkeypatch.setenv("AENV_INSTANCE_URL", server.url)
        with SyncEnvironment("shouter@1.0.0") as env:
            assert env.call_tool("chat", {"message": "hello"}).text == "HELLO"


def test_an_error_of_the_agent_is_an_error_of_the_tool_and_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("def agent(conversation):\n    raise RuntimeError('no model')" + REGISTER)
    with running(tmp_path / "broken.py", log=tmp_path / "log") as server:
        monkeypatch.setenv("AENV_INSTANCE_URL", server.url)
        with SyncEnvironment("broken@1.0.0") as env:
            result = env.call_tool("chat", {"message": "hello"})
            assert (result.is_error, result.fault) == (True, "env")
            assert "no model" in result.text
            assert env.call_function("history") == []


def test_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="no agent that is known"):
        register_agent(42)


def test_an_agent_of_the_openai_agents_sdk_keeps_a_memory_for_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from agents import Agent, OpenAIChatCompletionsModel\nfrom openai import AsyncOpenAI\n"
        "model = OpenAIChatCompletionsModel('scripted', AsyncOpenAI(base_url='URL', api_key='none'))\n"
        "agent = Agent(name='clerk', instructions='Answer.', model=model)"
    )
    check_agent_as_environment(code, tmp_path, monkeypatch)
