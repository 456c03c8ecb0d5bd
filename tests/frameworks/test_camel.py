from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aenv import Environment, SyncEnvironment
from aenv.testing import ModelServer
from tests.frameworks.agent_contract import AgentContract, needs
from tests.frameworks.agent_module import check_agent_as_environment

needs("camel.agents", "camel")

from camel.agents import ChatAgent  # noqa: E402
from camel.models import ModelFactory  # noqa: E402
from camel.types import ModelPlatformType  # noqa: E402
from camel.utils import BaseTokenCounter  # noqa: E402


class TestCamel(AgentContract):
    malformed, infra, images = "ends the run", "read by the model", "named"

    async def ask(self, env: Environment, model: ModelServer, question: str) -> str:
        answer = await agent(model, await env.agent_tools("camel")).astep(question)
        return str(answer.msgs[0].content)

    def ask_blocking(self, env: SyncEnvironment, model: ModelServer, question: str) -> str:
        return str(agent(model, env.agent_tools("camel")).step(question).msgs[0].content)


class Characters(BaseTokenCounter):
    """Counts without the tables that CAMEL's own counter downloads."""

    def count_tokens_from_messages(self, messages: list[Any]) -> int:
        return len(str(messages))

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


def agent(model: ModelServer, tools: list[Any]) -> Any:
    platform = ModelPlatformType.OPENAI_COMPATIBLE_MODEL
    made = ModelFactory.create(
        model_platform=platform, model_type="scripted", url=model.url, api_key="none", token_counter=Characters()
    )
    return ChatAgent("Keep the house comfortable.", model=made, tools=tools)


WRAPPED = """
from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.types import ModelPlatformType
from camel.utils import BaseTokenCounter

class Letters(BaseTokenCounter):
    def count_tokens_from_messages(self, messages):
        return len(str(messages))
    def encode(self, text):
        return [ord(letter) for letter in text]
    def decode(self, token_ids):
        return "".join(map(chr, token_ids))

model = ModelFactory.create(
    model_platform=ModelPlatformType.OPENAI_COMPATIBLE_MODEL, model_type="scripted", url="URL", api_key="none",
    token_counter=Letters(),
)
agent = ChatAgent("Answer.", model=model)
"""


def test_an_agent_is_an_environment_with_a_memory_for_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_agent_as_environment(WRAPPED, tmp_path, monkeypatch)
