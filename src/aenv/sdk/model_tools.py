"""Tools of an environment for plain model APIs, and the dispatcher of the calls that a model makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import from_json

from aenv.authoring.results import ToolResult
from aenv.errors import NotJson
from aenv.sdk.model_formats import Json, ModelCall, ModelFormat, accepted_names, model_format
from aenv.sdk.qualified_names import bare_name

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment


class ModelTools:
    """The tools of an environment in the format of one model API; returned by `Environment.tools_for`.

    Example:
        ```python
        tools = await env.tools_for("openai-chat")
        while True:
            reply = await client.chat.completions.create(model=model, messages=messages, tools=tools.definitions)
            messages.append(reply.choices[0].message)
            results = await tools.answer(reply)
            if not results:
                break
            messages += results
        ```
    """

    def __init__(self, env: Environment, api: ModelFormat, listed: list[Json]) -> None:
        self._env = env
        self._api = api
        names = accepted_names([bare_name(env.env_name, tool["name"]) for tool in listed])
        self._qualified = {name: tool["name"] for name, tool in zip(names, listed, strict=True)}
        self.definitions: list[Json] = api.definitions(
            [{**tool, "name": name} for name, tool in zip(names, listed, strict=True)]
        )
        """Value of ``tools`` in a request to the model API, with names that it accepts."""

    @classmethod
    async def open(cls, env: Environment, api: str) -> ModelTools:
        """Ask the environment for its tools."""
        chosen = model_format(api)
        return cls(env, chosen, await env.list_tools())

    async def answer(self, response: Any, timeout: float | None = None) -> list[Json]:
        """Run the tool calls of a model's response, in order, and return the messages to append.

        Malformed JSON, unknown tools, wrong arguments and tools that fail are results for the model to read.

        Args:
            response: Response of the model API, its message, or one tool call: an object of the vendor's package, or
                the same as a dict.
            timeout: Time limit of each call in seconds; default: that of the environment.

        Returns:
            Messages (input items in the Responses API); none if the model called no tool.

        Raises:
            InvalidUse: ``response`` is of another API.
            EnvironmentError, ToolError: a call has no result; see `Environment.call_tool`.
        """
        answered = [(call, await self._run(call, timeout)) for call in self._api.read_calls(response)]
        return self._api.messages(answered)

    async def _run(self, call: ModelCall, timeout: float | None) -> ToolResult:
        qualified = self._qualified.get(call.name)
        if qualified is None:
            known = ", ".join(self._qualified) or "none"
            return _policy_error(f"Unknown tool: {call.name}; available tools: {known}")
        return await call_with_text(self._env, qualified, call.arguments, timeout, shown=call.name)


class CallsTools(Protocol):
    """Interface that `call_with_text` needs of an environment."""

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> ToolResult:
        """See `Environment.call_tool`."""
        ...


async def call_with_text(
    env: CallsTools, tool_name: str, arguments: Any, timeout: float | None = None, *, shown: str | None = None
) -> ToolResult:
    """Call a tool with arguments that a model wrote: JSON text, valid or not, or a dict.

    ``shown``: name of the tool in error messages.
    """
    what = f"Error calling tool '{shown or tool_name}'"
    if isinstance(arguments, str | bytes):
        try:
            arguments = from_json(arguments) if arguments.strip() else {}
        except ValueError as error:
            return _policy_error(f"{what}: the arguments are not valid JSON ({error}); send one JSON object")
    if arguments is not None and not isinstance(arguments, dict):
        kind = type(arguments).__name__
        return _policy_error(f"{what}: the arguments must be one JSON object, not {_JSON_NAMES.get(kind, kind)}")
    try:
        return await env.call_tool(tool_name, arguments, timeout)
    except NotJson as error:
        return _policy_error(f"{what}: {error.message}")


_JSON_NAMES = {"list": "an array", "str": "a string", "int": "a number", "float": "a number", "bool": "a boolean"}


def _policy_error(text: str) -> ToolResult:
    return ToolResult([{"type": "text", "text": text}], is_error=True, fault="policy")
