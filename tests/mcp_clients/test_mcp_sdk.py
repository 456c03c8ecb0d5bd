"""The official SDK's client, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import mcp
import pytest
from mcp import Client, MCPDeprecationWarning, MCPError

from tests.conftest import run

MODERN = "2026-07-28"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
SIXTEEN_MB = 16 * 1024 * 1024

eras = pytest.mark.parametrize("mode", ["legacy", MODERN, "auto"])


def connect(server: str, mode: str) -> Client:
    return Client(f"{server}/mcp", mode=mode)


def call(server: str, mode: str, tool: str, arguments: dict[str, Any] | None = None) -> mcp.types.CallToolResult:
    """One call, after a look at the list: a client that has the schemas checks results against them."""

    async def main() -> mcp.types.CallToolResult:
        async with connect(server, mode) as client:
            await client.list_tools()
            return await client.call_tool(tool, arguments)

    return run(main())


def texts(result: mcp.types.CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, mcp.types.TextContent)]


@eras
def test_the_eras_are_what_they_say(server: str, mode: str) -> None:
    async def main() -> tuple[str, Any, Any]:
        async with connect(server, mode) as client:
            return client.protocol_version, client.server_info, client.server_capabilities

    version, info, capabilities = run(main())
    assert (version == MODERN) == (mode != "legacy")
    if mode != MODERN:  # a pinned version asks the server nothing
        assert info.name == "aenv-server"
        assert capabilities.tools is not None
        assert (capabilities.prompts, capabilities.resources, capabilities.logging) == (None, None, None)


@eras
def test_tools_are_listed_with_schemas_and_descriptions(server: str, mode: str) -> None:
    async def main() -> list[mcp.types.Tool]:
        async with connect(server, mode) as client:
            listed = await client.list_tools()
            assert listed.next_cursor is None
            return listed.tools

    tools = {tool.name: tool for tool in run(main())}
    assert tools["search"].description == "Find pages."
    assert tools["search"].input_schema["required"] == ["query"]
    assert tools["search"].input_schema["additionalProperties"] is False
    query, limit = (tools["search"].input_schema["properties"][name] for name in ("query", "limit"))
    assert query == {"type": "string", "description": "What to look for"}
    assert limit == {"type": "integer", "default": 10, "description": "The most that may be found"}
    assert tools["search"].output_schema is None
    assert tools["find_place"].description == "A description of its own."
    assert tools["find_place"].output_schema is not None
    assert set(tools["find_place"].output_schema["properties"]) == {"name", "population"}
    assert not {"hidden", "reward"} & set(tools)


@eras
def test_a_dict_is_text_and_structured_content(server: str, mode: str) -> None:
    result = call(server, mode, "search", {"query": "mcp", "tags": ["a"]})
    assert result.structured_content == {"query": "mcp", "limit": 10, "tags": ["a"]}
    assert [json.loads(text) for text in texts(result)] == [result.structured_content]
    assert not result.is_error


@eras
def test_a_model_fits_its_output_schema(server: str, mode: str) -> None:
    result = call(server, mode, "find_place", {"name": "Ulm"})
    assert result.structured_content == {"name": "Ulm", "population": 7}
    assert [json.loads(text) for text in texts(result)] == [result.structured_content]


@eras
@pytest.mark.parametrize(
    ("what", "blocks"), [("str", ["héllo ☃"]), ("empty", [""]), ("none", []), ("block", ["a block"])]
)
def test_text_is_text(server: str, mode: str, what: str, blocks: list[str]) -> None:
    result = call(server, mode, "give", {"what": what})
    assert (texts(result), result.structured_content, result.is_error) == (blocks, None, False)


@eras
@pytest.mark.parametrize(("what", "value"), [("list", ["a", 1, None]), ("number", 2)])
def test_other_json_is_structured_where_the_era_allows_it(server: str, mode: str, what: str, value: Any) -> None:
    result = call(server, mode, "give", {"what": what})
    assert [json.loads(text) for text in texts(result)] == [value]
    assert result.structured_content == (None if mode == "legacy" else value)


@eras
@pytest.mark.parametrize(
    ("tool", "arguments", "kind", "value"),
    [
        ("count_letters", {"text": "abc"}, {"type": "integer"}, 3),
        ("repeat", {"text": "ab", "times": 2}, {"type": "string"}, "abab"),
        ("due", {}, {"type": "string", "format": "date-time"}, "2026-01-02T00:00:00Z"),
        ("maybe", {"there": True}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3),
        ("maybe", {"there": False}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("words", {}, {"type": "array", "items": {"type": "string"}}, ["a", "b"]),
    ],
)
def test_scalars_and_lists_have_output_schemas(
    server: str, mode: str, tool: str, arguments: dict[str, Any], kind: dict[str, Any], value: Any
) -> None:
    async def main() -> tuple[Any, Any]:
        async with connect(server, mode) as client:
            listed = {each.name: each for each in (await client.list_tools()).tools}
            return listed[tool].output_schema, await client.call_tool(tool, arguments)

    schema, result = run(main())
    assert not result.is_error
    if mode == "legacy" or tool == "maybe":  # before 2026-07-28 it has to be an object, and the SDK sends no null
        assert (schema["type"], schema["properties"], schema["required"]) == ("object", {"result": kind}, ["result"])
        assert result.structured_content == {"result": value}
    else:
        assert (schema, result.structured_content) == (kind, value)


@eras
def test_a_dataclass_with_values_that_json_does_not_have_fits_its_schema(server: str, mode: str) -> None:
    assert call(server, mode, "order").structured_content == {
        "at": "2026-01-02T03:04:05Z", "price": "12.50", "file": "/a/b", "grade": "good", "tags": ["x"], "raw": "AAE=",
    }  # fmt: skip
    assert texts(call(server, mode, "grade")) == ['"poor"']


@eras
def test_a_result_that_its_annotation_does_not_allow_is_an_error_and_not_a_refusal_of_the_client(
    server: str, mode: str
) -> None:
    result = call(server, mode, "lies")
    assert result.is_error
    assert texts(result) == [
        "Error calling tool 'lies': it returned 'three', which its annotation does not allow ({'type': 'integer'})"
    ]


@eras
def test_pictures_and_sounds_have_their_type(server: str, mode: str) -> None:
    (image,) = call(server, mode, "give", {"what": "image"}).content
    assert isinstance(image, mcp.types.ImageContent)
    assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", PNG)
    (audio,) = call(server, mode, "give", {"what": "audio"}).content
    assert isinstance(audio, mcp.types.AudioContent)
    assert audio.mime_type == "audio/wav"
    text, image = call(server, mode, "give", {"what": "mixed"}).content
    assert (text.type, image.type) == ("text", "image")


@eras
def test_an_explicit_result_goes_out_as_it_is(server: str, mode: str) -> None:
    result = call(server, mode, "give", {"what": "result"})
    assert (texts(result), result.structured_content, result.is_error) == (["a result"], {"a": 1}, True)


@eras
@pytest.mark.parametrize("tool", ["picture", "explicit"])
def test_content_in_the_signature_is_no_output_schema(server: str, mode: str, tool: str) -> None:
    """A client that knows an output schema refuses results without structured content, pictures among them."""
    result = call(server, mode, tool)
    assert [block.type for block in result.content] == ["image" if tool == "picture" else "text"]


@eras
def test_a_raising_tool_is_an_error_in_the_authors_words(server: str, mode: str) -> None:
    result = call(server, mode, "fails")
    assert result.is_error
    assert texts(result) == ["Error calling tool 'fails': the author's words"]


@eras
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "query: missing"),
        ({"query": 3}, "query: Input should be a valid string, got 3"),
        ({"query": "a", "limit": "3"}, "limit: expected an integer, got the text '3'; send 3 without quotes"),
        ({"query": "a", "lmit": 3}, "lmit: unknown argument; known: query, limit, tags"),
    ],
)
def test_bad_arguments_are_an_error_that_a_model_can_act_on(
    server: str, mode: str, arguments: dict[str, Any], complaint: str
) -> None:
    result = call(server, mode, "search", arguments)
    assert result.is_error
    assert texts(result) == [f"Error calling tool 'search': invalid arguments: {complaint}"]


@eras
def test_an_unknown_tool_is_an_error(server: str, mode: str) -> None:
    result = call(server, mode, "serach", {"query": "a"})
    assert result.is_error
    assert "serach" in texts(result)[0]


@eras
def test_a_hidden_tool_can_be_called(server: str, mode: str) -> None:
    assert texts(call(server, mode, "hidden")) == ["found"]


def test_a_ping_is_answered_in_the_era_that_has_it(server: str) -> None:
    async def main() -> None:
        async with connect(server, "legacy") as client:
            with pytest.warns(MCPDeprecationWarning):  # the method is gone from the next era
                await client.send_ping()
        async with connect(server, MODERN) as client:
            with pytest.warns(MCPDeprecationWarning), pytest.raises(MCPError, match="Method not found"):
                await client.send_ping()

    run(main())


@eras
@pytest.mark.parametrize("tool", ["progresses", "progresses_async"])
def test_progress_arrives_in_order_and_before_the_result(server: str, mode: str, tool: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total, message))

    async def main() -> int:
        async with connect(server, mode) as client:
            await client.call_tool(tool, {"steps": 20}, progress_callback=hear)
            return len(heard)

    assert run(main()) == 20
    assert heard == [(step, 20, f"step {step}") for step in range(1, 21)]


@eras
@pytest.mark.parametrize(
    ("hangs", "notices", "says"),
    [("hang", "wait_for_cancellation", "cancelled"), ("hang_in_thread", "wait_for_giving_up", "given up")],
)
def test_a_cancelled_call_is_cancelled_and_the_server_lives_on(
    server: str, mode: str, hangs: str, notices: str, says: str
) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def hear(*_: object) -> None:
            begun.set()

        async with connect(server, mode) as client:
            hanging = asyncio.create_task(client.call_tool(hangs, {"key": mode}, progress_callback=hear))
            await begun.wait()
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
            assert texts(await client.call_tool(notices, {"key": mode})) == [says]
            assert texts(await client.call_tool("give", {"what": "str"})) == ["héllo ☃"]

    run(main())


@eras
def test_sixteen_megabytes_go_in_and_come_out(server: str, mode: str) -> None:
    async def main() -> None:
        async with Client(f"{server}/mcp", mode=mode) as client:
            counted = await client.call_tool("count_letters", {"text": "x" * SIXTEEN_MB})
            assert texts(counted) == [str(SIXTEEN_MB)]
            (long,) = texts(await client.call_tool("repeat", {"text": "0123456789abcdef", "times": SIXTEEN_MB // 16}))
            assert len(long) == SIXTEEN_MB
            assert long.endswith("0123456789abcdef")

    run(main())


async def use(server: str, mode: str, mark: str) -> None:
    async with connect(server, mode) as client:
        assert len((await client.list_tools()).tools) > 10
        for n in range(5):
            result = await client.call_tool("search", {"query": f"{mark} {n}"})
            assert result.structured_content == {"query": f"{mark} {n}", "limit": 10, "tags": None}


def test_many_clients_of_both_eras_at_the_same_time(server: str) -> None:
    async def main() -> None:
        await asyncio.gather(*(use(server, ["legacy", MODERN, "auto"][n % 3], str(n)) for n in range(24)))

    run(main())


@pytest.mark.long
@pytest.mark.parametrize("attempt", range(3))
def test_a_cold_server_takes_many_first_clients_at_once(start: Callable[[], str], attempt: int) -> None:
    async def main(server: str) -> None:
        await asyncio.gather(*(use(server, ["legacy", MODERN][n % 2], str(n)) for n in range(8)))

    run(main(start()))


async def post(server: str, message: dict[str, Any], until: bytes, *headers: str) -> bytes:
    """Send one message of the older era, read until there is ``until``, and hang up without another word."""
    host, _, port = server.removeprefix("http://").partition(":")
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    lines = (
        "POST /mcp HTTP/1.1",
        f"host: {host}:{port}",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        f"content-length: {len(body)}",
        *headers,
    )
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    try:
        await writer.drain()
        return await reader.readuntil(until) if until else b""
    finally:
        writer.transport.abort()


HELLO = {
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "hasty", "version": "1"},
    },
}


def test_a_session_outlives_the_connection_that_opened_it(server: str) -> None:
    """Clients hang up as soon as they have read the handshake's result, while the server is still closing it."""

    async def main() -> None:
        for _ in range(50):
            opened = await post(server, HELLO, b'"result"')
            head = opened.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
            session = next(line for line in head if line.startswith("mcp-session-id:"))
            answer = await post(server, {"method": "notifications/initialized"}, b"\r\n", session)
            assert b" 202 " in answer, answer

    run(main())


def test_a_cold_server_survives_first_clients_that_hang_up(start: Callable[[], str]) -> None:
    """They leave while the server is still loading what it answers them with."""

    async def main(server: str) -> None:
        leaving = [post(server, HELLO, b"") for _ in range(4)]
        await asyncio.gather(*leaving, *(use(server, mode, mode) for mode in ("legacy", MODERN)))
        await use(server, "legacy", "later")

    run(main(start()))
