"""`timeouts` of config.json: limits that an environment sets itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aenv import Environment
from aenv.errors import AEnvError, EnvironmentTimeoutError
from tests.conftest import run

CODE = """
import asyncio
import time
import os

from aenv import register_function, register_tool

if os.environ.get("SLOW"):
    time.sleep(600)


@register_tool
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


@register_tool
def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


@register_function
async def wait_too(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"
"""


def _project(folder: Path, **timeouts: str) -> str:
    (folder / "src").mkdir()
    (folder / "src" / "env.py").write_text(CODE)
    config = {"name": "limits", "version": "1.0.0", "protocolVersion": "2025-06-18", "timeouts": timeouts}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_call_ends_at_the_limit_of_its_environment(sandboxes: None, tmp_path: Path) -> None:
    project = _project(tmp_path, call="200ms")

    async def main() -> None:
        async with Environment(project) as env:
            for tool in ("wait", "sleep"):
                result = await env.call_tool(tool, {"seconds": 3})
                assert (result.is_error, result.fault) == (True, "timeout")
                assert "timeouts.call" in result.text
            with pytest.raises(EnvironmentTimeoutError, match=r"timeouts\.call"):
                await env.call_function("wait_too", {"seconds": 3})
            assert (await env.call_tool("wait", {"seconds": 0})).data == "done"

    run(main())


def test_a_start_ends_at_the_limit_of_its_environment(sandboxes: None, tmp_path: Path) -> None:
    project = _project(tmp_path, startup="1s")

    async def main() -> None:
        with pytest.raises(AEnvError, match=r"timeouts\.startup") as late:
            await Environment(project, environment_variables={"SLOW": "1"}).initialize()
        assert late.value.fault == "timeout"

    run(main())
