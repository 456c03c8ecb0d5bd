"""Where a program of this machine does a task from: a server with the tools of a terminal on the task's system.

It speaks MCP and our own HTTP, as any instance does, so an agent needs nothing that it does not have already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aenv.authoring.declarations import fresh_registry, register_function, register_tool
from aenv.bench.agent_program import tools_served
from aenv.images.box import Box
from aenv.images.layered_images import BoxImage
from aenv.terminal.pane import Pane

MOST_WAIT = 300.0
SAID = 20_000
"""Characters of an output that are kept in a record."""

NICE = 10
"""Beside tests that have times to keep."""

T = TypeVar("T")
Note = Callable[[dict[str, Any]], None]


class ToolServer:
    """The tools, and what was done with them."""

    def __init__(self, box: Box, image: BoxImage, instruction: str, note: Note) -> None:
        self._box = box
        self._image = image
        self._instruction = instruction
        self._note = note
        self._pane: Pane | None = None
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Its URL, for as long as the context is."""
        with fresh_registry() as registry:
            for tool in (self.execute_command, self.keystrokes, self.capture_pane):
                register_tool(tool)
            register_function(self.get_instruction)
        try:
            async with tools_served(registry, "terminal") as url:
                yield url
        finally:
            if self._pane is not None:
                self._pane.close()

    def get_instruction(self) -> str:
        """What is to be done."""
        return self._instruction

    async def execute_command(self, command: str, timeout: float = 60) -> dict[str, Any]:
        """Run a line of bash in the task's folder, to its end; what it leaves in the background goes on."""
        return await self._at_the_box(self._execute(command, timeout))

    async def keystrokes(self, keystrokes: str, append_enter: bool = False, wait_time_sec: float = 0.0) -> str:
        """Type into the terminal; C-c, Enter and the like are keys. What it shows after so many seconds."""
        keys = [keystrokes, "Enter"] if append_enter else [keystrokes]
        return await self._at_the_box(self._type("keystrokes", keys, wait_time_sec))

    async def capture_pane(self, wait_before_capture_sec: float = 0.0) -> str:
        """What the terminal shows."""
        return await self._at_the_box(self._type("capture_pane", [], wait_before_capture_sec))

    async def _at_the_box(self, work: Coroutine[Any, Any, T]) -> T:
        """Tools run on an event loop of their own; the box belongs to another."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _execute(self, command: str, timeout: float) -> dict[str, Any]:
        began = time.monotonic()
        done = await self._box.exec(
            ["bash", "-c", command],
            cwd=self._image.cwd,
            user=self._image.user,
            timeout=timeout,
            merge_stderr=True,
            nice=NICE,
        )
        self._noted("execute_command", {"command": command, "timeout": timeout}, done.output, began)
        return {"output": [done.output, not done.timed_out], "returncode": done.code}

    async def _type(self, name: str, keys: list[str], seconds: float) -> str:
        began = time.monotonic()
        pane = self._terminal()
        for key in keys:
            pane.type(key)
        await asyncio.sleep(min(max(seconds, 0.0), MOST_WAIT))
        shown = pane.text()
        self._noted(name, {"keys": keys, "seconds": seconds}, shown, began)
        return shown

    def _terminal(self) -> Pane:
        if self._pane is None or self._pane.ended:
            variables = {"TERM": "xterm", "PS1": "\\w\\$ "}
            master = self._box.open_terminal(
                ["bash", "--norc", "--noprofile", "-i"], cwd=self._image.cwd, env=variables, user=self._image.user
            )
            self._pane = Pane(master)
        return self._pane

    def _noted(self, name: str, arguments: dict[str, Any], output: str, began: float) -> None:
        seconds = round(time.monotonic() - began, 3)
        self._note({"tool": name, "arguments": arguments, "output": output[-SAID:], "seconds": seconds})
