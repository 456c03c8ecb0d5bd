"""An agent as users write it: it knows only the tools, nothing of benchmarks."""

import asyncio
import os
import sys
from pathlib import Path

from aenv import Environment


async def main() -> None:
    async with Environment("terminal@0.1.0") as env:
        instruction = await env.call_function("get_instruction", {})
        assert instruction == Path(os.environ["AENV_TASK_INSTRUCTION"]).read_text(), instruction
        seen = await env.call_tool("execute_command", {"command": "ls / /app; id -u"})
        output = seen.data["output"][0]
        assert "tests" not in output.split(), output
        assert "words.txt" in output.split(), output
        if "--crash" in sys.argv:
            sys.exit(3)
        await env.call_tool(
            "terminal@0.1.0/keystrokes", {"keystrokes": "tools/say > greeting.txt", "append_enter": True}
        )
        while (await env.call_tool("execute_command", {"command": "test -s greeting.txt"})).data["returncode"]:
            pass
        await env.call_tool("keystrokes", {"keystrokes": "clear; echo $((6 * 7))", "append_enter": True})
        while "42" not in (await env.call_tool("capture_pane", {"wait_before_capture_sec": 0.05})).content[0]["text"]:
            pass


asyncio.run(main())
