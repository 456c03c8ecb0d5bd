"""mini-terminal in sandboxes of the local platform, through the SDK: one instance for each session."""

import os

from commands import Open, Run, main

from aenv import Environment


async def session(runtime: str) -> Open:
    os.environ["AENV_RUNTIME_DIR"] = runtime

    async def open_session() -> Run:
        env = Environment("mini-terminal")
        await env.initialize()

        async def run(command: str) -> tuple[str, int]:
            data = (await env.call_tool("execute_command", {"command": command})).data
            return data["output"][0], data["returncode"]

        return run

    return open_session


main(session)
