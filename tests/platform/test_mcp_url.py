"""MCP clients of other programs, and calls with progress, reach instances through the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import run
from tests.local.test_mcp_url import tools_at
from tests.platform.parts import Served, serving


@pytest.fixture
def remote(data: Path) -> Iterator[Served]:
    with serving(data) as served:
        yield served


def test_a_foreign_client_reaches_an_instance_through_the_gateway(remote: Served) -> None:
    token = remote.token("ann")

    async def main() -> list[str]:
        async with remote.environment(token=token) as env:
            assert env.mcp_token == token
            return await tools_at(env.mcp_url, env.mcp_token)

    assert "increment" in run(main())


def test_a_call_with_progress_passes_through_the_gateway(remote: Served) -> None:
    async def main() -> list[object]:
        async with remote.environment(token=remote.token("ann")) as env:
            result = await env.call_tool("increment", on_progress=print)
            failed = await env.call_tool("no_such_tool", on_progress=print)
            return [result.data, failed.is_error, failed.fault]

    assert run(main()) == [1, True, "policy"]
