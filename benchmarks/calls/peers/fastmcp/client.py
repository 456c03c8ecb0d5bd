"""Drives FastMCP; it has tools only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastmcp import Client
from load import Calls, expect, fresh, run


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Calls]:
    async with Client(f"{url}/mcp") as client:

        async def tool() -> None:
            said = fresh()
            result = await client.call_tool("echo", {"content": said})
            expect(result.data == {"result": said}, result)

        yield {"tool": tool}


run(session)
