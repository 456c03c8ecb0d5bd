"""Serve the tools of an episode on the loopback interface, for an agent that is a program.

The instance may be behind a Unix socket and a token. The program gets a server of its own, which has the same tools,
forwards every call through the episode, and so records it and counts it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import WithJsonSchema

from aenv.authoring.declarations import Registry, fresh_registry, register_function, register_tool
from aenv.authoring.results import ToolResult
from aenv.errors import AEnvError
from aenv.rollout.episode import Episode
from aenv.runtime.calls.endpoints import EndpointCatalog
from aenv.runtime.serve import EnvServer, ServeOptions

STOP_SECONDS = 5.0
"""Time for a cancelled call to end."""


class ToolProxy:
    """The server, and the failure of a call that ends the episode."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._loop = asyncio.get_running_loop()
        self._calls: set[asyncio.Task[Any]] = set()
        self.failure: AEnvError | None = None
        """First error that is no result: the program cannot see it, and the runner needs it."""
        self.failed = asyncio.Event()
        """Set with `failure`."""

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve until the end of the block; yield the URL."""
        with fresh_registry() as registry:
            for tool in self._episode.tools:
                self._register(tool["function"])
            register_function(name="get_instruction")(lambda: self._episode.instruction)
        async with tools_served(registry, self._episode.env.env_name) as url:
            try:
                yield url
            finally:
                await self._cancel_calls()

    async def _cancel_calls(self) -> None:
        """End calls that still run: nobody reads their results, and they would change the state while it is graded."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=STOP_SECONDS)

    def _register(self, tool: dict[str, Any]) -> None:
        """Register a tool that forwards calls to the instance, which checks the arguments."""
        name, schema = tool["name"], tool["parameters"]
        required = schema.get("required", [])
        parameters, annotations = [], {}
        for parameter, about in schema.get("properties", {}).items():
            annotations[parameter] = Annotated[Any, WithJsonSchema(about)]
            default = inspect.Parameter.empty if parameter in required else None
            parameters.append(
                inspect.Parameter(
                    parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotations[parameter]
                )
            )

        def call(**arguments: Any) -> ToolResult:
            given = {key: value for key, value in arguments.items() if value is not None or key in required}
            return asyncio.run_coroutine_threadsafe(self._call(name, given), self._loop).result()

        call.__name__ = call.__qualname__ = name
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = annotations
        register_tool(name=name, description=tool.get("description") or "")(call)

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await self._episode.call_tool(name, arguments)
        except AEnvError as error:
            self.failure = self.failure or error
            self.failed.set()
            raise
        finally:
            self._calls.discard(task)


@asynccontextmanager
async def tools_served(registry: Registry, name: str) -> AsyncIterator[str]:
    """Serve the tools of ``registry`` until the end of the block; yield the URL."""
    service = EnvServer(ServeOptions(path=Path("/"), name=name), EndpointCatalog(registry))
    listener = await service.server.listen(host="127.0.0.1", port=0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        await service.close()
