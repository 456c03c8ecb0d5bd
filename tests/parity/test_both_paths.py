"""Plain HTTP and both versions of MCP give the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from mcp import Client

from aenv import Environment
from aenv.testing import Server, running
from tests.conftest import ENVS

GIVEN = (
    "empty", "none", "list", "number", "true", "dict", "bytes", "png", "image", "mixed", "point", "unicode", "result",
    "model", "nan",
)  # fmt: skip
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("echo", {"content": "x"}),
    ("echo", {"content": 'quotes " and \\ and \n and ☃'}),
    ("echo_async", {"content": "x"}),
    ("renamed", {}),
    ("renamed", {"x": 5}),
    ("original_name", {}),
    ("hidden", {}),
    ("search", {"params": {"query": "q", "max_results": 2}}),
    ("kinds", {"s": "a", "i": 1, "f": 1.5, "b": False, "tags": [], "options": {"deep": {"er": [1, None, True]}}}),
    ("kinds", {"s": "a", "i": 1, "f": 2, "b": False, "tags": ["t"], "maybe": None, "color": "blue", "mode": "slow"}),
    ("kinds", {"s": "a", "i": "1", "f": "x", "b": 1, "tags": "t", "color": "green", "mode": "wrong"}),
    ("kinds", {}),
    ("echo", {"content": "x", "extra": 1}),
    ("echo", {}),
    ("nonsense", {}),
    ("fails", {}),
    ("fails", {"message": ""}),
    ("quits", {}),
    ("unserialisable", {}),
    ("give_mcp", {}),
    ("breaks_its_word", {}),
    *(("give", {"what": kind}) for kind in GIVEN),
]
Answer = dict[str, Any]
Call = Callable[[str, dict[str, Any]], Awaitable[Answer]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(ENVS / "everything.py", log=tmp_path_factory.mktemp("server") / "log") as server:
        yield server


async def over_lean(url: str) -> list[Answer]:
    async with Environment("everything") as env:
        results = [await env.call_tool(name, arguments) for name, arguments in CALLS]
    return [
        {"content": r.content, "is_error": r.is_error, "fault": r.fault, "data": None if r.is_error else r.data}
        for r in results
    ]


async def over_mcp(url: str, mode: Any) -> list[Answer]:
    answers = []
    async with Client(f"{url}/mcp", mode=mode) as client:
        for name, arguments in CALLS:
            result = await client.call_tool(name, arguments)
            blocks = [b.model_dump(mode="json", by_alias=True, exclude_none=True) for b in result.content]
            data = result.structured_content
            text = blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else None
            answers.append(
                {
                    "content": blocks,
                    "is_error": result.is_error,
                    "fault": (result.meta or {}).get("aenv/fault"),
                    "data": data if data is not None or result.is_error else text,
                }
            )
    return answers


@pytest.fixture(scope="module")
def answers(server: Server) -> dict[str, list[Answer]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AENV_INSTANCE_URL", server.url)
        return {
            "lean": asyncio.run(over_lean(server.url)),
            "2026-07-28": asyncio.run(over_mcp(server.url, "2026-07-28")),
            "legacy": asyncio.run(over_mcp(server.url, "legacy")),
        }


@pytest.mark.parametrize("number", range(len(CALLS)), ids=[f"{name}-{n}" for n, (name, _) in enumerate(CALLS)])
def test_a_call_has_one_answer_on_every_path(answers: dict[str, list[Answer]], number: int) -> None:
    lean, modern, legacy = (answers[path][number] for path in ("lean", "2026-07-28", "legacy"))
    assert modern == lean
    # Before MCP 2026-07-28, structured content had to be an object: other values are wrapped, or come only as text.
    assert {**legacy, "data": None} == {**lean, "data": None}
    if isinstance(lean["data"], dict):
        assert legacy["data"] == lean["data"]


def test_the_tools_are_the_same_on_every_path(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_INSTANCE_URL", server.url)

    async def lists() -> tuple[Any, Any, Any]:
        async with Environment("e") as env:
            lean = [(t["name"].removeprefix("e/"), t["description"], t["inputSchema"]) for t in await env.list_tools()]
        found = []
        for mode in ("legacy", "2026-07-28"):
            async with Client(f"{server.url}/mcp", mode=mode) as client:
                found.append([(t.name, t.description, t.input_schema) for t in (await client.list_tools()).tools])
        return lean, *found

    lean, legacy, modern = asyncio.run(lists())
    assert lean == legacy == modern
