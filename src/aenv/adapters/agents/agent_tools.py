"""Tools of an environment as plain objects: name, description, JSON schema and a call.

Each file beside this one turns them into the tool objects of one framework. An `Environment` belongs to the event loop
that opened it; frameworks call tools from threads and loops of their own, so every call is handed to that loop.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_json

from aenv.authoring.results import ToolResult
from aenv.errors import ConfigError, InvalidUse
from aenv.sdk.model_formats import accepted_names
from aenv.sdk.model_tools import call_with_text
from aenv.sdk.qualified_names import bare_name

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment

T = TypeVar("T")


class AgentTool:
    """A tool of an environment, callable from any thread and any event loop.

    Errors of the tool, wrong arguments and malformed JSON are results for the model to read. An exception means that
    there is no result: a fault of the infrastructure, which a model should not read as a tool's answer.
    """

    def __init__(self, env: Environment, name: str, listed: dict[str, Any]) -> None:
        self.name = name
        """Name that all model APIs accept."""
        self.description: str = listed["description"] or ""
        self.schema: dict[str, Any] = listed["inputSchema"]
        """JSON schema of the arguments."""
        self._env = env
        self._qualified: str = listed["name"]
        self._home = asyncio.get_running_loop()

    async def call(self, arguments: Any) -> ToolResult:
        """Call the tool with arguments that a model wrote: JSON text or a dict."""
        work = call_with_text(self._env, self._qualified, arguments, shown=self.name)
        if asyncio.get_running_loop() is self._home:
            return await work
        return await asyncio.wrap_future(self._hand_over(work))

    def call_blocking(self, arguments: Any) -> ToolResult:
        """Call the tool from a thread other than that of the environment's event loop.

        Raises:
            InvalidUse: this is the thread of that loop, which would wait for itself.
        """
        if _current_loop() is self._home:
            raise InvalidUse(
                f"tool '{self.name}' was called by blocking code in the event loop of its environment; "
                "run the agent in a thread (await asyncio.to_thread(agent.run, ...)) or use SyncEnvironment"
            )
        future = self._hand_over(call_with_text(self._env, self._qualified, arguments, shown=self.name))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def text(self, arguments: Any) -> str:
        """Call the tool and return its result as text."""
        return as_text(await self.call(arguments))

    def text_blocking(self, arguments: Any) -> str:
        """Call the tool as `call_blocking` does and return its result as text."""
        return as_text(self.call_blocking(arguments))

    def _hand_over(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if not self._home.is_running():
            work.close()
            raise InvalidUse(
                f"tool '{self.name}' was called after the event loop of its environment had ended; "
                "call it inside of 'async with Environment(...)', or use SyncEnvironment"
            )
        return asyncio.run_coroutine_threadsafe(work, self._home)


async def tools_of(env: Environment) -> list[AgentTool]:
    """Return the tools of an environment. They belong to the running event loop, as the environment does."""
    listed = await env.list_tools()
    names = accepted_names([bare_name(env.env_name, tool["name"]) for tool in listed])
    return [AgentTool(env, name, tool) for name, tool in zip(names, listed, strict=True)]


def as_text(result: ToolResult) -> str:
    """Return a result for a framework whose tools return text: other blocks as JSON, images by type and size."""
    return result.text if result.is_error else "\n".join(block_text(block) for block in result.content)


def block_text(block: dict[str, Any]) -> str:
    """Return a content block as text."""
    if block.get("type") == "text":
        return str(block["text"])
    if block.get("type") == "image":
        return f"[{block['mimeType']} image of {len(image_bytes(block))} bytes, which cannot be shown here]"
    return to_json(block).decode()


def image_bytes(block: dict[str, Any]) -> bytes:
    """Return the data of an image block."""
    return base64.b64decode(block["data"])


def has_images(result: ToolResult) -> bool:
    """Return whether a result has images to show."""
    return not result.is_error and any(block.get("type") == "image" for block in result.content)


def framework(module: str, extra: str) -> Any:
    """Import a module of a framework.

    Raises:
        ConfigError: it is not installed, or does not work with what is; the message has the extra that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"cannot import {module} ({error}); install it with: pip install 'aenvironment[{extra}]'"
        ) from error


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
