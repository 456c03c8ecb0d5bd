"""Tools of an environment as tools of the OpenAI Agents SDK, and a model that uses them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from aenv.errors import ConfigError

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")
NAME_LENGTH = 64
TURNS = 10
"""Maximum number of model calls for one answer."""


async def tools(env: Environment) -> list[Any]:
    """Return a FunctionTool for each tool of the environment, with a name that the OpenAI API accepts."""
    try:
        from agents import FunctionTool
    except ImportError as error:
        raise ConfigError("this needs the OpenAI Agents SDK: pip install 'aenvironment[agents]'") from error
    listed = await env.list_tools()
    qualified = [tool["name"] for tool in listed]
    names = openai_names([name.removeprefix(f"{env.env_name}/") for name in qualified])
    return [
        FunctionTool(
            name=name,
            description=tool["description"] or "",
            params_json_schema=tool["inputSchema"],
            on_invoke_tool=_invoker(env, tool["name"]),
            strict_json_schema=False,  # strict mode rejects free-form objects, which tools may take
        )
        for name, tool in zip(names, listed, strict=True)
    ]


class Speaker:
    """A model behind an OpenAI-compatible endpoint, with the tools of an environment and the conversation so far."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._conversation: list[Any] = []

    @classmethod
    async def open(cls, env: Environment, name: str, instructions: str) -> Speaker:
        """Connect to the model that OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL name."""
        offered = await tools(env)
        from agents import Agent, ModelSettings, OpenAIChatCompletionsModel
        from openai import AsyncOpenAI

        client = AsyncOpenAI(
            base_url=os.environ.get("OPENAI_BASE_URL") or None, api_key=os.environ.get("OPENAI_API_KEY") or "none"
        )
        model = OpenAIChatCompletionsModel(os.environ.get("OPENAI_MODEL") or "default", client)
        settings = ModelSettings(temperature=1.0, top_p=1.0, max_tokens=8192)
        return cls(Agent(name=name, instructions=instructions, tools=offered, model=model, model_settings=settings))

    async def answer(self, text: str) -> str:
        """Send ``text`` to the model, run its tool calls, and return its reply."""
        from agents import RunConfig, Runner

        messages = [*self._conversation, {"role": "user", "content": text}]
        done = await Runner.run(
            self._agent, messages, max_turns=TURNS, run_config=RunConfig(tracing_disabled=True)
        )  # traces would be sent to OpenAI
        self._conversation = done.to_input_list()
        return str(done.final_output)


def openai_names(names: list[str]) -> list[str]:
    """Return unique names of at most 64 letters, digits, ``_`` and ``-``."""
    made: list[str] = []
    for name in names:
        base = _FORBIDDEN.sub("_", name)[:NAME_LENGTH] or "tool"
        unique, number = base, 2
        while unique in made:
            suffix = f"_{number}"
            unique, number = base[: NAME_LENGTH - len(suffix)] + suffix, number + 1
        made.append(unique)
    return made


def _invoker(env: Environment, tool_name: str) -> Any:
    async def invoke(context: Any, arguments: str) -> Any:
        parsed = from_json(arguments) if arguments else {}
        result = await env.call_tool(tool_name, parsed)
        if result.is_error:
            return to_json(result.content).decode()
        if all(block.get("type") == "text" for block in result.content):
            return result.text
        return [_output(block) for block in result.content]

    return invoke


def _output(block: dict[str, Any]) -> Any:
    from agents import ToolOutputImage, ToolOutputText

    if block.get("type") == "image":
        return ToolOutputImage(image_url=f"data:{block['mimeType']};base64,{block['data']}")
    return ToolOutputText(text=block["text"] if block.get("type") == "text" else to_json(block).decode())
