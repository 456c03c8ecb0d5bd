"""Tools of an environment as tools of the OpenAI Agents SDK, and a model that uses them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from aenv.adapters.agents.agent_tools import AgentTool, as_text, block_text, framework, has_images, tools_of

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment

TURNS = 10
"""Maximum number of model calls for one answer."""


async def tools(env: Environment) -> list[Any]:
    """Return a FunctionTool for each tool of the environment, with a name that the OpenAI API accepts."""
    agents = framework("agents", "agents")
    return [
        agents.FunctionTool(
            name=tool.name,
            description=tool.description,
            params_json_schema=tool.schema,
            on_invoke_tool=_invoker(tool),
            strict_json_schema=False,  # strict mode rejects free-form objects, which tools may take
        )
        for tool in await tools_of(env)
    ]


class Speaker:
    """A model behind an OpenAI-compatible endpoint, with the tools of an environment and the conversation so far."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._conversation: list[Any] = []

    @classmethod
    async def open(
        cls, env: Environment, name: str, instructions: str, *, base_url: str | None = None, api_key: str | None = None
    ) -> Speaker:
        """Connect to a model: by default, the one that OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL name."""
        offered = await tools(env)
        from agents import Agent, ModelSettings, OpenAIChatCompletionsModel
        from openai import AsyncOpenAI

        client = AsyncOpenAI(
            base_url=base_url or os.environ.get("OPENAI_BASE_URL") or None,
            api_key=api_key or os.environ.get("OPENAI_API_KEY") or "none",
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


def _invoker(tool: AgentTool) -> Any:
    async def invoke(context: Any, arguments: str) -> Any:
        result = await tool.call(arguments)
        return [_output(block) for block in result.content] if has_images(result) else as_text(result)

    return invoke


def _output(block: dict[str, Any]) -> Any:
    from agents import ToolOutputImage, ToolOutputText

    if block.get("type") == "image":
        return ToolOutputImage(image_url=f"data:{block['mimeType']};base64,{block['data']}")
    return ToolOutputText(text=block_text(block))
