"""Agents for terminal tasks: the task's own solution, no agent, or a program on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from aenv.bench.agent_program import run_program
from aenv.bench.base import Result
from aenv.bench.terminal.task import Task
from aenv.bench.terminal.tool_server import MAX_OUTPUT, NICE, ToolServer
from aenv.errors import ConfigError
from aenv.images.box import Box
from aenv.images.box_files import pack
from aenv.images.layered_images import BoxImage


@dataclass(frozen=True, slots=True)
class Work:
    """A run of an agent on a task."""

    task: Task
    image: BoxImage
    box: Box
    folder: Path
    result: Result

    async def run(self, agent: str) -> None:
        """Run the agent: ``oracle``, ``nop`` or a command."""
        if agent == "nop":
            return
        if agent == "oracle":
            await self._oracle()
        else:
            await self._program(agent)

    async def _program(self, command: str) -> None:
        """Run a command on this machine as the calling user, with the URL of the tool server in its variables."""
        server = ToolServer(self.box, self.image, self.task.instruction, self.result.calls.append)
        async with server.served() as url:
            await run_program(command, self.folder, task=self.task.name, instruction=self.task.instruction, url=url)

    async def _oracle(self) -> None:
        source, place, script = self.task.solution
        if not source.exists():
            raise ConfigError(f"{self.task.name} has no solution of its own")
        await self.box.unpack(lambda target: pack(target, source, "." if source.is_dir() else source.name), place)
        began = time.monotonic()
        done = await self.box.exec(
            ["/bin/bash", script],
            cwd=self.image.cwd,
            user=self.image.user,
            env=self.task.solution_variables,
            merge_stderr=True,
            nice=NICE,
        )
        self.result.calls.append(
            {
                "command": f"bash {script}",
                "output": done.output[-MAX_OUTPUT:],
                "returncode": done.code,
                "seconds": round(time.monotonic() - began, 3),
            }
        )
