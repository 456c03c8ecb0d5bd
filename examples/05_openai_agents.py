# An agent of the OpenAI Agents SDK with an environment's tools. A script plays the model: no key, no network.
# Run it: pip install '.[agents]' && python examples/05_openai_agents.py

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from aenv import Environment, register_reward, register_tool
from aenv.testing import running

rooms = {"kitchen": 17.0, "study": 23.5}


@register_tool
def read_thermometer(room: str) -> dict:
    """The temperature of a room.

    Args:
        room: The room's name.
    """
    return {"room": room, "celsius": rooms[room]}


@register_tool
def set_heating(room: str, celsius: float) -> str:
    """Heat a room.

    Args:
        room: The room's name.
        celsius: How warm it shall be.
    """
    rooms[room] = celsius
    return f"{room} is at {celsius:g} now"


@register_reward
def comfort(room: str) -> float:
    """1 when the room is warm enough to cook in."""
    return 1.0 if rooms[room] >= 20 else 0.0


class ScriptedModel(Model):
    """Plays a model: looks at the last thing it was told, and says what comes next."""

    async def get_response(
        self, system_instructions: str | None, input: Any, model_settings: Any, tools: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        outputs = [item["output"] for item in input if isinstance(item, dict) and "output" in item]
        if not outputs:
            print(f"model     sees {', '.join(tool.name for tool in tools)}")
            reply = self._call(1, "read_thermometer", room="kitchen")
        elif len(outputs) == 1:
            print(f"model     reads {outputs[0]}")
            reply = self._call(2, "set_heating", room="kitchen", celsius=21.0)
        else:
            print(f"model     reads {outputs[1]}")
            reply = self._say("The kitchen was cold; I turned the heating up.")
        return ModelResponse(output=[reply], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError

    def _call(self, number: int, name: str, **arguments: Any) -> ResponseFunctionToolCall:
        return ResponseFunctionToolCall(
            type="function_call", call_id=f"call-{number}", name=name, arguments=json.dumps(arguments)
        )

    def _say(self, text: str) -> ResponseOutputMessage:
        part = ResponseOutputText(type="output_text", text=text, annotations=[])
        return ResponseOutputMessage(id="1", type="message", role="assistant", status="completed", content=[part])


async def main() -> None:
    set_tracing_disabled(True)  # traces would go to OpenAI
    async with Environment("house@1.0.0") as env:
        agent = Agent(
            name="butler",
            instructions="Keep the house comfortable.",
            model=ScriptedModel(),
            tools=await env.list_openai_tools(),
        )
        result = await Runner.run(agent, "I want to cook.")
        print(f"answer    {result.final_output}")
        print(f"reward    {await env.call_reward({'room': 'kitchen'})}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, running(__file__, log=Path(folder, "log")) as server:
        os.environ["AENV_INSTANCE_URL"] = server.url
        asyncio.run(main())
