"""The desktop in a sandbox: a letter is written and saved, files are sorted, with mouse and keyboard."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from aenv import Environment
from aenv.hub import builtin
from tests.conftest import run

NEEDED = ("Xvfb", "openbox", "mousepad", "xterm")
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, NEEDED)), reason="apt-get install -y xvfb openbox mousepad xterm"
)


def test_tasks_are_done_with_mouse_and_keyboard_and_graded_from_files() -> None:
    async def main() -> None:
        async with Environment(str(builtin.folder() / "desktop")) as env:

            async def call(tool: str, **arguments: Any) -> Any:
                result = await env.call_tool(tool, arguments, timeout=60)
                assert not result.is_error, result.text
                return result

            async def score() -> Any:
                return (await env.call_reward({}, timeout=60))["score"]

            started = await env.call_function("start", {"task": "letter", "seed": 1}, timeout=120)
            assert await score() == 0.0
            text = started["instruction"].split("'")[1]
            windows = (await call("list_windows")).data
            await call("activate_window", window=windows[0]["window"])
            await call("computer", action="left_click", coordinate=[400, 300])
            await call("computer", action="type", text=text + "\n")
            await call("computer", action="key", text="ctrl+s")
            for _ in range(60):
                if len((await call("list_windows")).data) > 1:
                    break
                await call("computer", action="wait", duration=0.1)
            await call("computer", action="key", text="ctrl+a")
            await call("computer", action="type", text=f"{started['home']}/Documents/letter.txt")
            for _ in range(60):
                if await score() == 1.0:
                    break
                # The first may end the list of names that the dialog offers.
                await call("computer", action="key", text="Return")
            assert await score() == 1.0
            assert (await call("screenshot")).content[0]["mimeType"] == "image/png"

            started = await env.call_function("start", {"task": "sort", "seed": 1}, timeout=120)
            assert await score() == 0.0
            first, second = started["instruction"].split("move ")[1].split(" into")[0].split(" and ")
            command = {"type": "type", "text": f"mkdir kept; mv {first} {second} kept\n"}
            await call("openai_computer", actions=[{"type": "click", "x": 500, "y": 400, "button": "left"}, command])
            for _ in range(60):
                if await score() == 1.0:
                    break
                await call("computer", action="wait", duration=0.1)
            assert await score() == 1.0
            refused = await env.call_tool("computer", {"action": "left_click", "coordinate": [5000, 1]})
            assert refused.is_error

    run(main())
