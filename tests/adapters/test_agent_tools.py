"""The common part of the adapters for agent frameworks, and the scripted model that they are tested with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment, SyncEnvironment, plugins
from aenv.adapters.agents.agent_tools import AgentTool, tools_of
from aenv.errors import ConfigError, InvalidUse
from aenv.rollout import ModelEndpoint
from aenv.rollout.model import ModelRequest
from aenv.testing import Server, calls, model_server, running
from tests.conftest import run

HOUSE = Path(__file__).parents[1] / "frameworks" / "house.py"
KITCHEN = {"room": "kitchen"}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(HOUSE, log=tmp_path_factory.mktemp("house") / "log") as server:
        yield server


@pytest.fixture(autouse=True)
def _use_house(house: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_INSTANCE_URL", house.url)


async def thermometer(env: Environment) -> AgentTool:
    return next(tool for tool in await tools_of(env) if tool.name == "read_thermometer")


def test_a_tool_is_called_from_its_loop_from_another_loop_and_from_a_thread() -> None:
    async def main() -> list[str]:
        async with Environment("house@1.0.0") as env:
            tool = await thermometer(env)
            return [
                await tool.text(KITCHEN),
                await asyncio.to_thread(lambda: asyncio.run(tool.text('{"room": "kitchen"}'))),
                await asyncio.to_thread(tool.text_blocking, KITCHEN),
            ]

    assert run(main()) == ['{"room":"kitchen","celsius":17.0}'] * 3


def test_blocking_code_in_the_loop_of_the_environment_is_refused_with_advice() -> None:
    async def main() -> None:
        async with Environment("house@1.0.0") as env:
            (await thermometer(env)).call_blocking(KITCHEN)

    with pytest.raises(InvalidUse, match=r"asyncio\.to_thread"):
        run(main())


def test_a_tool_whose_loop_has_ended_says_so() -> None:
    async def main() -> AgentTool:
        async with Environment("house@1.0.0") as env:
            return await thermometer(env)

    tool = run(main())
    with pytest.raises(InvalidUse, match="event loop of its environment had ended"):
        tool.call_blocking(KITCHEN)


def test_images_are_named_where_only_text_can_be_returned() -> None:
    async def main() -> str:
        async with Environment("house@1.0.0") as env:
            return await next(tool for tool in await tools_of(env) if tool.name == "photograph").text({})

    assert run(main()) == "[image/png image of 70 bytes, which cannot be shown here]"


def test_a_framework_that_is_unknown_or_not_installed_is_an_error_with_advice() -> None:
    with SyncEnvironment("house@1.0.0") as env:
        with pytest.raises(ConfigError, match="available: camel, claude-agent-sdk, google-adk"):
            env.agent_tools("crew")
        with pytest.raises(ConfigError, match=r"pip install 'aenvironment\[smolagents\]'"):
            env.agent_tools("smolagents")


def test_every_adapter_is_in_the_matrix_of_frameworks() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "frameworks.md").read_text(encoding="utf-8")
    assert [name for name in plugins.names(plugins.ADAPTERS) if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("api", ["chat", "anthropic"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_scripted_model_is_served_by_the_apis_of_both_vendors(api: Any, stream: bool) -> None:
    async def main(url: str) -> list[Any]:
        model = ModelEndpoint("m", url, api=api, key="none", stream=stream)
        messages: list[dict[str, Any]] = [{"role": "user", "content": "How warm is it?"}]
        tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
        first = await model.complete(ModelRequest(messages, [tool]))
        call = first.message["tool_calls"][0]
        messages += [first.message, {"role": "tool", "tool_call_id": call["id"], "content": "17"}]
        second = await model.complete(ModelRequest(messages, [tool]))
        model.close()
        return [call["function"]["name"], call["function"]["arguments"], second.message["content"]]

    with model_server([calls(("read", KITCHEN)), "It is 17 degrees."]) as served:
        assert run(main(served.url if api == "chat" else served.root)) == [
            "read",
            '{"room": "kitchen"}',
            "It is 17 degrees.",
        ]
        assert len(served.requests) == 2
