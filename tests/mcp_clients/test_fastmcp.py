"""FastMCP's client, which many agents' code is written with."""

from __future__ import annotations

import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError

from tests.conftest import run

eras = pytest.mark.parametrize("mode", ["legacy", "auto"])


@eras
def test_tools_are_listed_and_called(server: str, mode: str) -> None:
    async def main() -> None:
        async with Client(f"{server}/mcp", mode=mode) as client:
            tools = {tool.name: tool for tool in await client.list_tools()}
            assert tools["search"].description == "Find pages."
            found = await client.call_tool("search", {"query": "mcp"})
            assert found.data == {"query": "mcp", "limit": 10, "tags": None}
            place = await client.call_tool("find_place", {"name": "Ulm"})
            assert (place.data.name, place.data.population) == ("Ulm", 7)  # built from the output schema
            assert (await client.call_tool("count_letters", {"text": "abc"})).data == 3
            assert (await client.call_tool("repeat", {"text": "a", "times": 2})).data == "aa"
            (picture,) = (await client.call_tool("give", {"what": "image"})).content
            assert (picture.type, picture.mime_type) == ("image", "image/png")

    run(main())


@eras
@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("fails", {}, "the author's words"),
        ("search", {"query": 3}, "query: Input should be a valid string, got 3"),
        ("serach", {}, "Unknown tool: serach"),
    ],
)
def test_errors_are_raised_with_our_words(
    server: str, mode: str, tool: str, arguments: dict[str, object], words: str
) -> None:
    async def main() -> None:
        async with Client(f"{server}/mcp", mode=mode) as client:
            with pytest.raises(ToolError, match=words):
                await client.call_tool(tool, arguments)
            assert (await client.call_tool("give", {"what": "str"})).content[0].text == "héllo ☃"

    run(main())


@eras
def test_progress_is_heard(server: str, mode: str) -> None:
    heard: list[float] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append(done)

    async def main() -> None:
        async with Client(f"{server}/mcp", mode=mode) as client:
            await client.call_tool("progresses", {"steps": 3}, progress_handler=hear)

    run(main())
    assert heard == [1, 2, 3]
