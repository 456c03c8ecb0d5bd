"""MCP Inspector's command line, with which people look at a server by hand."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.npm, pytest.mark.parametrize("era", ["legacy", "modern"])]

Inspect = Callable[..., tuple[int, Any]]


@pytest.fixture
def inspect(node: Any, server: str, era: str, tmp_path: Path) -> Inspect:
    """Exit code, and the result (or on failure what it said)."""

    def inspect(*arguments: str) -> tuple[int, Any]:
        target = ("--cli", f"{server}/mcp", "--transport", "http", "--protocol-era", era)
        done = subprocess.run(
            [*node.tool("inspector"), *target, *arguments],
            cwd=tmp_path,
            env=node.variables({"HOME": str(tmp_path)}),  # it keeps a catalog of servers there
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        try:
            return done.returncode, json.loads(done.stdout)
        except ValueError:
            return done.returncode, (done.stdout + done.stderr)[-2000:]

    return inspect


def test_tools_are_listed_with_schemas_that_every_model_takes(inspect: Inspect) -> None:
    code, listed = inspect("--method", "tools/list", "--strict")
    assert code == 0, listed
    tools = {tool["name"]: tool for tool in listed["tools"]}
    assert tools["search"]["description"] == "Find pages."
    assert tools["search"]["inputSchema"]["required"] == ["query"]
    assert "outputSchema" in tools["find_place"]


def test_a_tool_is_called_with_arguments(inspect: Inspect) -> None:
    arguments = ("--tool-arg", "query=mcp", "--tool-arg", "limit=3")
    code, result = inspect("--method", "tools/call", "--tool-name", "search", *arguments)
    assert code == 0, result
    assert result["structuredContent"] == {"query": "mcp", "limit": 3, "tags": None}
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


def test_a_model_fits_its_output_schema(inspect: Inspect) -> None:
    code, result = inspect("--method", "tools/call", "--tool-name", "find_place", "--tool-arg", "name=Ulm")
    assert code == 0, result
    assert result["structuredContent"] == {"name": "Ulm", "population": 7}


def test_a_raising_tool_is_an_error_in_the_authors_words(inspect: Inspect) -> None:
    code, result = inspect("--method", "tools/call", "--tool-name", "fails")
    assert code != 0
    assert "the author's words" in json.dumps(result)
