"""Requirements for the tools of an environment in an agent framework, checked through the framework's own loop.

A framework's test class says how its agent is made and asked. A scripted model plays the other side, so that nothing
needs a key. `scripts/frameworks.py` runs these tests with the real packages and reads the class attributes.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aenv import Environment, SyncEnvironment
from aenv.testing import ModelServer, Server, calls, model_server, running

HOUSE = Path(__file__).with_name("house.py")


class AgentContract(ABC):
    """Tests that every adapter of an agent framework passes."""

    malformed: ClassVar[str] = "read by the model"
    """What happens to arguments that are not JSON."""
    infra: ClassVar[str] = "raised"
    """What happens to a fault of the infrastructure."""
    images: ClassVar[str] = "shown"

    @abstractmethod
    async def ask(self, env: Environment, model: ModelServer, question: str) -> str:
        """Make an agent with the environment's tools, ask it, and return its answer."""

    def ask_blocking(self, env: SyncEnvironment, model: ModelServer, question: str) -> str | None:
        """Do the same without an event loop; None where the framework has no blocking interface."""
        return None

    def tool(self, name: str) -> str:
        """Return the name of a tool as the model sees it."""
        return name

    def final(self, text: str) -> Any:
        """Return the message that ends a run with an answer."""
        return text

    @pytest.fixture(autouse=True)
    def _report(self, record_property: Any) -> None:
        """Leave the attributes in the report that `scripts/frameworks.py` reads."""
        for name in ("malformed", "infra", "images"):
            record_property(name, getattr(self, name))

    @pytest.fixture
    def house(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
        with running(HOUSE, log=tmp_path / "log") as server:
            monkeypatch.setenv("AENV_INSTANCE_URL", server.url)
            yield server

    def script(self, *turns: Any) -> Any:
        """Return a script that makes these tool calls one after another, then ends with 'done'.

        It tells the turn by the length of the conversation, as frameworks may send a request twice.
        """
        lengths: list[int] = []

        def answer(messages: list[Any], tools: list[Any]) -> Any:
            if not any(self.tool("read_thermometer") in json.dumps(tool) for tool in tools):
                return "a title"  # some frameworks ask more than what the agent is for
            length = len(json.dumps(messages))
            if length not in lengths:
                lengths.append(length)
            turn = lengths.index(length)
            if turn >= len(turns):
                return self.final("done")
            name, arguments = turns[turn]
            made = calls((self.tool(name), arguments if isinstance(arguments, dict) else {}))
            function = made["tool_calls"][0]["function"]
            if isinstance(arguments, str):
                function["arguments"] = arguments
            made["tool_calls"][0]["id"] = f"call_{turn}"
            return made

        return answer

    def asked(self, *turns: Any) -> tuple[str, str]:
        """Return the answer of an agent whose model makes these calls, and all that the model was last sent."""

        async def main(model: ModelServer) -> str:
            async with Environment("house@1.0.0") as env:
                return await self.ask(env, model, "Make it warm.")

        with model_server(self.script(*turns)) as model:
            answer = asyncio.run(main(model))
        return answer, self.last(model)

    def last(self, model: ModelServer) -> str:
        """Return the messages of the model's longest request as text."""
        longest = max(model.requests, key=lambda request: len(request["messages"]))
        return json.dumps(longest["messages"]).replace("\\", "")

    def test_an_agent_reads_results_and_changes_the_environment(self, house: Server) -> None:
        warm = {"slots": [{"room": "kitchen", "celsius": 21}]}
        answer, sent = self.asked(("read_thermometer", {"room": "kitchen"}), ("set_heating", warm))
        assert "done" in answer
        assert '"celsius":17.0' in sent
        assert "kitchen is at 21 now" in sent
        with SyncEnvironment("house@1.0.0") as env:
            assert env.call_reward({"room": "kitchen"}) == 1.0

    def test_the_model_sees_descriptions_and_schemas(self, house: Server) -> None:
        async def main() -> None:
            async with Environment("house@1.0.0") as env:
                await self.ask(env, model, "Make it warm.")

        with model_server(self.script()) as model:
            asyncio.run(main())
        offered = json.dumps([request.get("tools") for request in model.requests])
        for expected in ("Read the temperature of a room.", "Name of the room.", "slots", "celsius", "quiet"):
            assert expected in offered

    def test_the_model_reads_the_error_of_a_tool_and_goes_on(self, house: Server) -> None:
        answer, sent = self.asked(("read_thermometer", {"room": "cellar"}))
        assert "done" in answer
        assert "there is no thermometer in the cellar" in sent

    def test_the_model_reads_that_arguments_are_wrong(self, house: Server) -> None:
        answer, sent = self.asked(("read_thermometer", {"place": "kitchen"}))
        assert "done" in answer
        assert re.search("missing|required|unknown|unexpected|not in the tool's", sent)
        assert "17.0" not in sent

    def test_arguments_that_are_not_json_do_not_reach_the_tool(self, house: Server) -> None:
        try:
            answer, sent = self.asked(("read_thermometer", '{"room": "kit'))
        except Exception:
            assert self.malformed == "ends the run"
            return
        if self.malformed == "read by the model":
            assert "done" in answer
            assert "json" in sent.lower()
        assert "17.0" not in sent

    def test_the_model_gets_images(self, house: Server) -> None:
        answer, sent = self.asked(("photograph", {}))
        assert "done" in answer
        assert ("iVBORw0KGgo" in sent) == (self.images == "shown")
        assert ("image of" in sent) == (self.images == "named")

    def test_a_lost_instance_is_no_answer_of_a_tool(self, house: Server) -> None:
        async def main(model: ModelServer) -> str:
            async with Environment("house@1.0.0", timeout=5) as env:
                await env.list_tools()
                await asyncio.to_thread(house.stop)
                return await self.ask(GoneAfterListing(env), model, "Make it warm.")  # type: ignore[arg-type]

        with model_server(self.script(("read_thermometer", {"room": "kitchen"}))) as model:
            try:
                asyncio.run(main(model))
            except Exception:
                assert self.infra == "raised"
            else:
                assert self.infra == "read by the model"
                assert "17.0" not in self.last(model)

    def test_blocking_code_uses_the_tools_from_a_thread_without_a_loop(self, house: Server) -> None:
        turn = ("read_thermometer", {"room": "study"})
        with model_server(self.script(turn)) as model, SyncEnvironment("house@1.0.0") as env:
            answer = self.ask_blocking(env, model, "How warm is it?")
            if answer is None:
                pytest.skip("the framework has no blocking interface")
            assert "done" in answer
        assert '"celsius":23.5' in self.last(model)


class GoneAfterListing:
    """An environment whose tools are still known though its instance has gone."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.env_name = env.env_name

    async def list_tools(self) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {"room": {"type": "string", "description": "the room"}}}
        return [{"name": "read_thermometer", "description": "Read it.", "inputSchema": schema}]

    async def agent_tools(self, framework: str) -> list[Any]:
        return await Environment.agent_tools(self, framework)  # type: ignore[arg-type]

    async def call_tool(self, *given: Any) -> Any:
        return await self._env.call_tool(*given)


def needs(module: str, extra: str) -> None:
    """Skip the tests of a module where the framework is not installed."""
    pytest.importorskip(module, reason=f"needs {module}: pip install 'aenvironment[{extra}]'", exc_type=ImportError)
