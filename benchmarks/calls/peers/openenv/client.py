"""Drives OpenEnv: a step is the tool call, and its reward comes with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from load import Calls, expect, fresh, run
from openenv import GenericEnvClient


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Calls]:
    async with GenericEnvClient(base_url=url) as env:
        await env.reset()

        async def tool() -> None:
            said = fresh()
            result = await env.step({"content": said})
            expect(result.observation["result"] == said and result.reward == 1.0, result)

        yield {"tool": tool}


run(session)
