"""mini-terminal in real sandboxes of the local platform, with nothing configured. Its own tests know the commands."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from aenv import Environment
from aenv.client import local_lease
from tests.conftest import run

INTERACTIVE = """
import asyncio
from aenv import Environment
async def main():
    mini_terminal = Environment("mini-terminal@1.0.1", ttl="60m")
    tools = await mini_terminal.list_tools()
    print("Successfully obtained tool list:", tools)
    while True:
        user_input = input(">>> ").strip()
        if user_input.lower() in ("exit", "quit"):
            print("Exiting interactive mode")
            break
        result = await mini_terminal.call_tool(
            "mini-terminal@1.0.1/execute_command",
            {"command": user_input, "timeout": 5}
        )
        print("Execution result:\\n", result)
    await mini_terminal.release()
    print("Environment successfully released")
asyncio.run(main())
"""


def test_the_name_is_all_it_takes() -> None:
    async def main() -> None:
        async with Environment("mini-terminal") as env:
            result = await env.call_tool("mini-terminal@1.0.1/execute_command", {"command": "echo helloworld"})
            assert result.content == [{"type": "text", "text": '{"output":["helloworld\\n",true],"returncode":0}'}]
            assert not result.is_error

    run(main())


def test_what_agents_do_works_in_a_sandbox() -> None:
    async def main() -> None:
        async with Environment("mini-terminal") as env:

            async def command(text: str, timeout: float = 20) -> tuple[str, int]:
                data = (await env.call_tool("execute_command", {"command": text, "timeout": timeout})).data
                return data["output"][0], data["returncode"]

            assert await command("pwd; id -un; X=kept") == ("/home/env\nenv\n", 0)
            assert (await command("sleep 100", 0.3))[1] == 124
            assert await command("echo $X") == ("kept\n", 0)
            assert (await command("sudo -n true"))[1] != 0
            assert (await command("kill -9 $$"))[1] == 137
            assert await command("python3 -c 'print(6 * 7)' && (exit 7)") == ("42\n", 7)
            await env.call_tool("write_file", {"path": "notes/a.txt", "content": "one\ntwo\n"})
            assert await command("wc -l < notes/a.txt") == ("2\n", 0)
            listed = (await env.call_tool("list_files", {"path": "notes"})).data
            assert [entry["name"] for entry in listed["entries"]] == ["a.txt"]
            keys = {"keys": ["python3 -q", "Enter"], "wait_for": ">>> ", "timeout": 20}
            assert (await env.call_tool("send_keys", keys)).data["found"]
            keys = {"keys": ["6 * 7", "Enter"], "wait_for": "\n42"}
            assert (await env.call_tool("send_keys", keys)).data["found"]
            assert not (await command("env | grep AENV_"))[0]

    run(main())


def test_an_argument_that_makes_no_sense_is_the_agents_fault() -> None:
    async def main() -> None:
        async with Environment("mini-terminal") as env:
            for arguments in ({"command": "true", "timeout": 0}, {"command": "true", "timeout": "5"}, {}):
                result = await env.call_tool("execute_command", arguments)
                assert (result.is_error, result.fault) == (True, "policy")

    run(main())


def test_sixty_four_terminals_work_at_once_and_apart() -> None:
    async def one(env: Environment, number: int) -> None:
        await env.call_tool("execute_command", {"command": f"X={number}; echo {number} > mine"}, timeout=110)
        data = (await env.call_tool("execute_command", {"command": "echo $X; cat mine; ls | wc -l"}, timeout=110)).data
        assert data == {"output": [f"{number}\n{number}\n1\n", True], "returncode": 0}

    async def main() -> None:
        async with asyncio.timeout(110):
            async with Environment.batch("mini-terminal", 64) as batch:
                await asyncio.gather(*(one(env, number) for number, env in enumerate(await batch.all())))

    asyncio.run(main())


def test_instances_are_forks_of_one_that_has_it_loaded(platform: local_lease.LocalPaths) -> None:
    async def main() -> None:
        async with Environment.batch("mini-terminal", 4) as batch:
            await batch.all()

    run(main())
    assert "mini-terminal is loaded anew" not in platform.log.read_text()


def test_the_interactive_program_works_in_a_real_terminal(tmp_path: Path) -> None:
    script = tmp_path / "chat.py"
    script.write_text(INTERACTIVE)
    master, slave = pty.openpty()
    program = subprocess.Popen([sys.executable, script], stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path)
    os.close(slave)
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(master, 65536)
        seen = seen.partition(text)[2]

    try:
        until(b"mini-terminal@1.0.1/execute_command")
        until(b">>> ")
        os.write(master, b"echo hello$((40 + 2))\n")
        until(json.dumps('{"output":["hello42\\n",true],"returncode":0}').strip('"').replace('\\"', '"').encode())
        until(b">>> ")
        os.write(master, b"quit\n")
        until(b"Environment successfully released")
        assert program.wait(30) == 0
    finally:
        program.kill()
        program.wait()
        os.close(master)
