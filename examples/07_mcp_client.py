# The official MCP SDK against an environment, in both eras of the protocol: any MCP client works.
# Run it: python examples/07_mcp_client.py

import asyncio
import tempfile
from pathlib import Path

from mcp import Client

from aenv import register_reward, register_tool
from aenv.testing import running

board: list[str] = []


@register_tool
def pin(note: str) -> dict:
    """Put a note on the board."""
    board.append(note)
    return {"notes": len(board)}


@register_tool
def read(index: int) -> str:
    """The note at that place."""
    return board[index]


@register_reward
def tidy() -> float:
    """Rewards are for trainers: MCP clients do not see them."""
    return 1.0 if len(board) < 3 else 0.0


async def talk(url: str, mode: str) -> None:
    async with Client(f"{url}/mcp", mode=mode) as client:
        print(f"{mode}: protocol {client.protocol_version}")
        listed = await client.list_tools()
        print(f"  tools  {[tool.name for tool in listed.tools]}")
        result = await client.call_tool("pin", {"note": f"pinned by {mode}"})
        print(f"  pin    {result.structured_content}")
        result = await client.call_tool("read", {"index": 7})
        print(f"  read   is_error={result.is_error}: {result.content[0].text}")
        print(f"  fault  {(result.meta or {}).get('aenv/fault')}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, running(__file__, log=Path(folder, "log")) as server:
        for mode in ("auto", "legacy"):
            asyncio.run(talk(server.url, mode))
