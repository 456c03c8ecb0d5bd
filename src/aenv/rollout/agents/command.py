"""Any command as an agent. It gets the tools as an MCP server and the model's base URL, in environment variables."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aenv.errors import AEnvError
from aenv.rollout.episode import Episode
from aenv.rollout.model import Model, ModelRefused, ModelUnavailable

if TYPE_CHECKING:
    from aenv.rollout.capture import CaptureSession

T = TypeVar("T")
OUTPUT = 4000
"""Characters of the command's output that are recorded."""


class AgentFailed(AEnvError):
    """The agent's command ended with an error."""

    code, fault = "agent_failed", "policy"


class CommandAgent:
    """An agent that is a command of this machine, run as the calling user.

    Its variables: ``AENV_TASK`` (id), ``AENV_TASK_INSTRUCTION`` (a file), ``AENV_TASK_URL`` and ``AENV_TASK_MCP_URL``
    (the tools), and the model: ``AENV_MODEL``, ``OPENAI_BASE_URL`` and ``ANTHROPIC_BASE_URL`` with placeholders as
    keys. They lead to a proxy that records every request, counts it in the budget, and adds the key and the sampling
    parameters of the rollout.
    """

    def __init__(
        self,
        command: str,
        variables: Mapping[str, str] | None = None,
        folder: Callable[[Episode], Path] | None = None,
    ) -> None:
        """``folder``: returns the existing folder to run in, which keeps the log; default: a temporary one."""
        self.command = command
        self._variables = dict(variables or {})
        self._folder = folder

    async def __call__(self, episode: Episode) -> None:
        from aenv.rollout.agents.tool_proxy import ToolProxy  # loads the whole server

        proxy = ToolProxy(episode)
        with self._opened_folder(episode) as folder:
            async with proxy.served() as url, model_captured(episode) as session:
                variables = task_variables(folder, episode.task.id, episode.instruction, url)
                variables["AENV_SEED"] = str(episode.seed)
                if session is not None and episode.model is not None:
                    variables |= {**_hidden(episode.model), **session.variables, "AENV_MODEL": episode.model.name}
                running = run_command(self.command, folder, {**variables, **self._variables})
                ended = await _until(proxy.failed, running)
        if ended is not None:
            episode.note(output=ended[1], exit_code=ended[0])
        if ended is None or proxy.failure is not None:
            assert proxy.failure is not None
            raise proxy.failure
        code, output = ended
        if session is not None:
            _raise_failure_of_model(session, code)
        if code:
            raise AgentFailed(f"the agent ended with exit code {code}:\n{output[-1500:]}")

    @contextmanager
    def _opened_folder(self, episode: Episode) -> Iterator[Path]:
        if self._folder is not None:
            yield self._folder(episode)
            return
        with tempfile.TemporaryDirectory(prefix="aenv-agent-") as folder:
            yield Path(folder)


async def _until(failed: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of ``work``; end it and return None if ``failed`` is set before."""
    running, failing = asyncio.ensure_future(work), asyncio.ensure_future(failed.wait())
    try:
        await asyncio.wait({running, failing}, return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None
    finally:
        running.cancel()
        failing.cancel()
        await asyncio.wait({running, failing})


def task_variables(folder: Path, task: str, instruction: str, url: str) -> dict[str, str]:
    """Return the variables that tell a program its task and its tools; write the instruction to a file."""
    file = folder / "instruction.md"
    file.write_text(instruction)
    return {
        "AENV_TASK": task, "AENV_TASK_INSTRUCTION": str(file), "AENV_TASK_URL": url,
        "AENV_TASK_MCP_URL": f"{url}/mcp", "AENV_INSTANCE_URL": url, "DUMMY_INSTANCE_IP": url,
    }  # fmt: skip


@asynccontextmanager
async def model_captured(episode: Episode) -> AsyncIterator[CaptureSession | None]:
    """Serve the episode's model through a recording proxy until the end of the block; None if it has no endpoint."""
    from aenv.rollout.capture import CaptureProxy, Upstream  # loads a server

    model = episode.model
    url, key = getattr(model, "url", None), getattr(model, "key", None)
    if model is None or url is None:
        yield None
        return
    async with CaptureProxy(Upstream(url, key or "")) as proxy:
        session = proxy.open(
            episode.recorder, budget=episode.budget, on_reply=episode.count, add_fields=episode.sampling
        )
        try:
            yield session
        finally:
            await proxy.close_session(session)


def _hidden(model: Model) -> dict[str, str]:
    """Return placeholders for the variables of this process that hold the model's key."""
    key = getattr(model, "key", None)
    return {name: "captured" for name, value in os.environ.items() if key and value == key}


def _raise_failure_of_model(session: CaptureSession, code: int) -> None:
    """Raise what the command could not see or could only report as its own failure."""
    if session.refused is not None:
        raise session.refused
    status = session.failed_status
    if not code or status is None:
        return
    if status in (401, 403, 404) and not session.answered:
        raise ModelRefused(f"the model's server answered with HTTP status {status}")
    if status in (401, 403, 404, 429) or status >= 500:
        raise ModelUnavailable(f"the model's server answered with HTTP status {status}, and the agent gave up")


async def run_command(command: str, folder: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a shell command until it ends; return its exit code and the end of its output. It leaves no child behind."""
    path = folder / "agent.log"
    with path.open("wb") as log:
        process = await _started(
            asyncio.create_subprocess_shell(
                command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **variables},
                cwd=folder, start_new_session=True,
            )
        )  # fmt: skip
        try:
            code = await process.wait()
        finally:
            await _killed(process)
    return code, path.read_text(errors="replace").strip()[-OUTPUT:]


async def _started(starting: Coroutine[Any, Any, Process]) -> Process:
    """Start a process. asyncio kills only the process itself if its start is cancelled, and not its child processes."""
    start = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(start)
    except asyncio.CancelledError:
        await asyncio.wait({start})
        if start.exception() is None:
            await _killed(start.result())
        raise


async def _killed(process: Process) -> None:
    """Kill a process and its child processes, and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
