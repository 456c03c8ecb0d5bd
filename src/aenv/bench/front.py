"""A program of this machine does a task through the tools of an instance, over MCP or the SDK.

The instance itself may be behind a socket and a token. What a program is given is a server on the loopback with the
same tools, which passes every call on and notes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import WithJsonSchema

from aenv.bench.base import Job
from aenv.core.declarations import fresh_registry, register_function, register_tool
from aenv.core.environment import Environment
from aenv.core.results import ToolResult
from aenv.errors import UsageError
from aenv.runtime.catalog import Catalog
from aenv.runtime.serve import ServeOptions, open_server

CALL_SECONDS = 3600.0
SAID = 20_000
"""Characters of an output that are kept in a record."""
Note = Callable[[dict[str, Any]], None]


async def do(job: Job, env: Environment, instruction: str, note: Note) -> None:
    """Run the job's agent, a command, until it ends.

    Raises:
        UsageError: it ended with an error.
    """
    file = job.folder / "instruction.md"
    file.write_text(instruction)
    async with _served(env, instruction, note) as url:
        told = {"AENV_TASK": job.task, "AENV_TASK_INSTRUCTION": str(file), "AENV_TASK_URL": url}
        variables = {**os.environ, **told, "AENV_TASK_MCP_URL": f"{url}/mcp", "DUMMY_INSTANCE_IP": url}
        code = await _run(job.agent, job.folder, variables)
    if code:
        said = (job.folder / "agent.log").read_text(errors="replace").strip()[-1500:]
        raise UsageError(f"the agent ended with exit code {code}:\n{said}")


async def _run(command: str, folder: Path, variables: dict[str, str]) -> int:
    with (folder / "agent.log").open("wb") as log:
        process = await asyncio.create_subprocess_shell(
            command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=variables, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        try:
            return await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # and whatever it has started
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@asynccontextmanager
async def _served(env: Environment, instruction: str, note: Note) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    listed = await env.list_tools()
    with fresh_registry() as registry:
        for tool in listed:
            _offer(tool, env, loop, note)
        register_function(name="get_instruction")(lambda: instruction)
    catalog = Catalog(registry)
    server, mcp = await open_server(ServeOptions(path=Path("/"), name=env.env_name), catalog)
    listener = await server.listen(host="127.0.0.1", port=0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        await server.close(0)
        await mcp.close()
        catalog.workers.close()


def _offer(tool: dict[str, Any], env: Environment, loop: asyncio.AbstractEventLoop, note: Note) -> None:
    """The same tool, here. Its arguments are checked there."""
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
        result = asyncio.run_coroutine_threadsafe(work, loop).result()  # this is a thread; the instance is the loop's
        seconds = round(time.monotonic() - began, 3)
        note({"tool": name, "arguments": given, "output": result.text[-SAID:], "seconds": seconds})
        return result

    call.__name__ = call.__qualname__ = name
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = annotations
    register_tool(name=name, description=tool.get("description") or "")(call)
