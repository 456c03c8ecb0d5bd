"""Drives our SDK and that of aenvironment 0.1.7: the same calls, so the same file."""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from load import Calls, expect, fresh, run

from aenv import Environment

logging.getLogger("aenv").setLevel(logging.WARNING)


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Calls]:
    os.environ["DUMMY_INSTANCE_IP"] = url
    async with Environment("bench@1.0.0") as env:

        async def tool() -> None:
            said = fresh()
            result = await env.call_tool("echo", {"content": said})
            expect(not result.is_error and f'"{said}"' in result.content[0]["text"], result)

        async def function() -> None:
            expect(await env.call_function("add", {"a": 1, "b": 2}) == 3)

        async def reward() -> None:
            expect(await env.call_reward({"status": {"completed": True}}) == 1.0)

        yield {"tool": tool, "function": function, "reward": reward}


run(session)
