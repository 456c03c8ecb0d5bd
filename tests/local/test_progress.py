"""Progress of a tool in a sandbox, and through the gateway of a platform."""

from __future__ import annotations

from typing import Any

from aenv import Environment
from tests.conftest import ENVS, run


def test_progress_comes_out_of_a_sandbox() -> None:
    seen: list[Any] = []

    async def main() -> Any:
        async with Environment(str(ENVS / "everything.py")) as env:
            return await env.call_tool("progresses", {"steps": 2}, on_progress=lambda *report: seen.append(report))

    assert run(main()).data == 2
    assert seen == [(1, 2, "step 1"), (2, 2, "step 2")]
