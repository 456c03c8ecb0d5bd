"""A program that uses some instances until it is told to end, or killed. Run by the tests of this folder.

It prints a line for each instance that it has, then one for each round of calls. What it reads decides how it ends:
``release`` or ``leave`` (without a word to the platform).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from aenv import Environment
from aenv.errors import AEnvError


async def main(project: str, count: int) -> None:
    envs = [Environment(project, max_retries=3, timeout=20) for _ in range(count)]
    asked = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), asked.set)
    await asyncio.gather(*(env.initialize() for env in envs))
    infos = await asyncio.gather(*(env.get_env_info() for env in envs))
    print("ready", *(info["instance_id"] for info in infos), flush=True)
    while not asked.is_set():
        await asyncio.gather(*(use(env) for env in envs))
        print("called", flush=True)
    if sys.stdin.readline().strip() == "leave":
        os._exit(0)
    await asyncio.gather(*(env.release() for env in envs))


async def use(env: Environment) -> None:
    """A call that is often on its way; whatever is killed, it ends."""
    with contextlib.suppress(AEnvError):
        await env.call_tool("nap", {"seconds": 0.02}, timeout=20)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
