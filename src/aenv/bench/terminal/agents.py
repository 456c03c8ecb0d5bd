"""Who does a task: the task's own solution, nobody, or a program of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from aenv.bench.base import Result
from aenv.bench.terminal.desk import NICE, SAID, Desk
from aenv.bench.terminal.task import Task
from aenv.engines.boxes.box import Box
from aenv.engines.boxes.images import Image
from aenv.engines.boxes.packing import pack
from aenv.errors import ConfigError, UsageError


@dataclass(frozen=True, slots=True)
class Work:
    """One agent at one task."""

    task: Task
    image: Image
    box: Box
    folder: Path
    result: Result

    async def do(self, agent: str) -> None:
        """Do it, by whom it is to be done."""
        if agent == "nop":
            return
        if agent == "oracle":
            await self._oracle()
        else:
            await self._program(agent)

    async def _program(self, command: str) -> None:
        """A command of this machine, as the user would start it. It finds the task's system through its variables."""
        instruction = self.folder / "instruction.md"
        instruction.write_text(self.task.instruction)
        desk = Desk(self.box, self.image, self.task.instruction, self.result.calls.append)
        async with desk.served() as url:
            variables = {
                **os.environ, "AENV_TASK": self.task.name, "AENV_TASK_INSTRUCTION": str(instruction),
                "AENV_TASK_URL": url, "AENV_TASK_MCP_URL": f"{url}/mcp", "DUMMY_INSTANCE_IP": url,
            }  # fmt: skip
            with (self.folder / "agent.log").open("wb") as log:
                process = await asyncio.create_subprocess_shell(
                    command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=variables,
                    cwd=self.folder, start_new_session=True,
                )  # fmt: skip
                try:
                    code = await process.wait()
                finally:
                    with contextlib.suppress(ProcessLookupError):  # and whatever it has started
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
        if code:
            said = (self.folder / "agent.log").read_text(errors="replace").strip()[-1500:]
            raise UsageError(f"the agent ended with exit code {code}:\n{said}")

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
            joined=True,
            nice=NICE,
        )
        self.result.calls.append(
            {
                "command": f"bash {script}",
                "output": done.output[-SAID:],
                "returncode": done.code,
                "seconds": round(time.monotonic() - began, 3),
            }
        )
