"""MCP clients of other programs reach local instances over TCP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from aenv import Environment, SyncEnvironment
from aenv.errors import InvalidUse
from tests.conftest import run


async def tools_at(url: str, token: str | None) -> list[str]:
    """List tools with the official client, as another program would."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False) as http,
        streamable_http_client(url, http_client=http) as streams,
        ClientSession(*streams[:2]) as session,
    ):
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        result = await session.call_tool("increment", {})
        return [*tools, result.content[0].text]  # type: ignore[union-attr]


def test_a_foreign_client_uses_the_same_instance_with_its_url_and_token(project: Path) -> None:
    async def main() -> tuple[Any, Any, Any]:
        async with Environment(str(project), mcp=True) as env:
            assert env.mcp_url.startswith("http://127.0.0.1:")
            seen = await tools_at(env.mcp_url, env.mcp_token)
            async with Environment("counter", instance_id=env.instance_id) as attached:
                assert (attached.mcp_url, attached.mcp_token) == (env.mcp_url, env.mcp_token)
            return seen, (await env.call_tool("increment")).data, None

    tools, count, _ = run(main())
    assert tools == ["increment", "variable", "arguments", "speak", "1"]
    assert count == 2


def test_without_its_token_nobody_reaches_an_instance(project: Path) -> None:
    with SyncEnvironment(str(project), mcp=True) as env, SyncEnvironment(str(project), mcp=True) as other:
        assert env.mcp_token is not None
        assert other.mcp_token is not None
        wrong = {"Authorization": f"Bearer {other.mcp_token}"}
        right = {"Authorization": f"Bearer {env.mcp_token}"}
        with httpx2.Client(trust_env=False) as client:
            for headers in ({}, wrong):
                assert client.post(env.mcp_url, json={}, headers=headers).status_code == 401
            for path in ("/tools", "/exec", "/mcp/../tools", "/port/8081"):
                place = env.mcp_url.removesuffix("/mcp") + path
                assert client.post(place, json={}, headers=right).status_code in (403, 404)


def test_a_url_needs_an_instance_that_was_opened_for_mcp_clients(project: Path) -> None:
    env = SyncEnvironment(str(project))
    with pytest.raises(InvalidUse, match="there is no instance yet"):
        _ = env.mcp_url
    with env, pytest.raises(InvalidUse, match="pass mcp=True to Environment"):
        _ = env.mcp_url


def test_a_batch_can_be_opened_for_mcp_clients(project: Path) -> None:
    async def main() -> list[str]:
        async with Environment.batch(str(project), 2, mcp=True) as batch:
            first, second = await batch.all()
            assert first.mcp_url != second.mcp_url
            return await tools_at(second.mcp_url, second.mcp_token)

    assert run(main())[-1] == "1"
