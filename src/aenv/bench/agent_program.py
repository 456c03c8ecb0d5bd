"""Run an agent that is a program on this machine, and serve the tools that it uses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aenv.authoring.declarations import Registry
from aenv.errors import UsageError
from aenv.runtime.endpoints import EndpointCatalog
from aenv.runtime.serve import EnvServer, ServeOptions


@asynccontextmanager
async def tools_served(registry: Registry, name: str) -> AsyncIterator[str]:
    """Serve the tools of ``registry`` until the end of the block; yield the URL."""
    service = EnvServer(ServeOptions(path=Path("/"), name=name), EndpointCatalog(registry))
    listener = await service.server.listen(host="127.0.0.1", port=0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        await service.close()


async def run_program(command: str, folder: Path, *, task: str, instruction: str, url: str) -> None:
    """Run a shell command as the calling user until it ends. It gets the task in environment variables.

    Raises:
        UsageError: the command ended with an error.
    """
    file = folder / "instruction.md"
    file.write_text(instruction)
    variables = {
        **os.environ, "AENV_TASK": task, "AENV_TASK_INSTRUCTION": str(file), "AENV_TASK_URL": url,
        "AENV_TASK_MCP_URL": f"{url}/mcp", "AENV_INSTANCE_URL": url, "DUMMY_INSTANCE_IP": url,
    }  # fmt: skip
    with (folder / "agent.log").open("wb") as log:
        process = await asyncio.create_subprocess_shell(
            command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=variables, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # kill its child processes too
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code:
        output = (folder / "agent.log").read_text(errors="replace").strip()[-1500:]
        raise UsageError(f"the agent ended with exit code {code}:\n{output}")
