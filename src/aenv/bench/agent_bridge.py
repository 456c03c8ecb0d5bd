"""Let a program on this machine solve a task with the tools of an instance, over MCP or the SDK.

The instance may be behind a Unix socket and a token. The program gets a proxy on the loopback interface, which has the
same tools, forwards every call and records it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from pydantic import WithJsonSchema

from aenv.authoring.declarations import fresh_registry, register_function, register_tool
from aenv.authoring.results import ToolResult
from aenv.bench.agent_program import run_program, tools_served
from aenv.bench.base import BenchJob
from aenv.sdk.environment import Environment

CALL_SECONDS = 3600.0
MAX_OUTPUT = 20_000
"""Characters of an output that are kept in a record."""
Record = Callable[[dict[str, Any]], None]
"""Receives a record of each call."""


async def run_agent(job: BenchJob, env: Environment, instruction: str, record: Record) -> None:
    """Run the job's agent, a command, until it ends.

    Raises:
        UsageError: the agent ended with an error.
    """
    async with _proxy(env, instruction, record) as url:
        await run_program(job.agent, job.folder, task=job.task, instruction=instruction, url=url)


@asynccontextmanager
async def _proxy(env: Environment, instruction: str, record: Record) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    listed = await env.list_tools()
    with fresh_registry() as registry:
        for tool in listed:
            _register(tool, env, loop, record)
        register_function(name="get_instruction")(lambda: instruction)
    async with tools_served(registry, env.env_name) as url:
        yield url


def _register(tool: dict[str, Any], env: Environment, loop: asyncio.AbstractEventLoop, record: Record) -> None:
    """Register a tool that forwards calls to the instance, which checks the arguments."""
    name = tool["name"].rpartition("/")[2]
    required = tool["inputSchema"].get("required", [])
    parameters, annotations = [], {}
    for parameter, schema in tool["inputSchema"].get("properties", {}).items():
        annotations[parameter] = Annotated[Any, WithJsonSchema(schema)]
        default = inspect.Parameter.empty if parameter in required else None
        parameters.append(
            inspect.Parameter(
                parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotations[parameter]
            )
        )

    def call(**arguments: Any) -> ToolResult:
        given = {key: value for key, value in arguments.items() if value is not None or key in required}
        began = time.monotonic()
        work = env.call_tool(name, given, timeout=CALL_SECONDS)
        result = asyncio.run_coroutine_threadsafe(work, loop).result()  # sync tools run in a thread
        seconds = round(time.monotonic() - began, 3)
        record({"tool": name, "arguments": given, "output": result.text[-MAX_OUTPUT:], "seconds": seconds})
        return result

    call.__name__ = call.__qualname__ = name
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = annotations
    register_tool(name=name, description=tool.get("description") or "")(call)
