"""Terminal tools on a task's container, for agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aenv.authoring.declarations import Registry, fresh_registry, register_tool
from aenv.images.box import Box
from aenv.images.layered_images import BoxImage
from aenv.terminal.pane import Pane

MAX_WAIT = 300.0
MAX_OUTPUT = 20_000
"""Characters of an output that are kept in a record."""

NICE = 10
"""Niceness of the agent's commands: tests that run at the same time have time limits."""

T = TypeVar("T")
Record = Callable[[dict[str, Any]], None]


class TerminalTools:
    """The tools. It records their calls."""

    def __init__(self, box: Box, image: BoxImage, record: Record) -> None:
        self._box = box
        self._image = image
        self._record = record
        self._pane: Pane | None = None
        self._loop = asyncio.get_running_loop()

    def registry(self) -> Registry:
        """Return the tools."""
        with fresh_registry() as registry:
            for tool in (self.execute_command, self.keystrokes, self.capture_pane):
                register_tool(tool)
        return registry

    def close(self) -> None:
        """End the terminal, if one was used."""
        if self._pane is not None:
            self._pane.close()

    async def execute_command(self, command: str, timeout: float = 60) -> dict[str, Any]:
        """Run a line of bash in the task's folder and wait for its end. Background processes keep running."""
        return await self._on_box_loop(self._execute(command, timeout))

    async def keystrokes(self, keystrokes: str, append_enter: bool = False, wait_time_sec: float = 0.0) -> str:
        """Type into the terminal (C-c, Enter and similar names are keys); return the screen after the wait."""
        keys = [keystrokes, "Enter"] if append_enter else [keystrokes]
        return await self._on_box_loop(self._type("keystrokes", keys, wait_time_sec))

    async def capture_pane(self, wait_before_capture_sec: float = 0.0) -> str:
        """Return the screen of the terminal."""
        return await self._on_box_loop(self._type("capture_pane", [], wait_before_capture_sec))

    async def _on_box_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the event loop of the box; tools run on another one."""
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
        self._record_call("execute_command", {"command": command, "timeout": timeout}, done.output, began)
        return {"output": [done.output, not done.timed_out], "returncode": done.code}

    async def _type(self, name: str, keys: list[str], seconds: float) -> str:
        began = time.monotonic()
        pane = self._terminal()
        for key in keys:
            pane.type(key)
        await asyncio.sleep(min(max(seconds, 0.0), MAX_WAIT))
        shown = pane.text()
        self._record_call(name, {"keys": keys, "seconds": seconds}, shown, began)
        return shown

    def _terminal(self) -> Pane:
        if self._pane is None or self._pane.ended:
            variables = {"TERM": "xterm", "PS1": "\\w\\$ "}
            master = self._box.open_terminal(
                ["bash", "--norc", "--noprofile", "-i"], cwd=self._image.cwd, env=variables, user=self._image.user
            )
            self._pane = Pane(master)
        return self._pane

    def _record_call(self, name: str, arguments: dict[str, Any], output: str, began: float) -> None:
        seconds = round(time.monotonic() - began, 3)
        self._record({"tool": name, "arguments": arguments, "output": output[-MAX_OUTPUT:], "seconds": seconds})
