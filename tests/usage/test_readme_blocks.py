"""Existing code of users runs unchanged: an environment is defined, served and called as printed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"


@pytest.fixture(scope="module")
def blocks() -> list[str]:
    found = sorted(SEEDS.glob("001*"))
    if not found:
        pytest.skip("the document whose code is run here (../shared/seeds/001*) is not beside this repository")
    return re.findall(r"```python\n(.*?)```", found[0].read_text(encoding="utf-8", errors="replace"), re.DOTALL)


def block_with(blocks: list[str], words: str) -> str:
    (block,) = (block for block in blocks if words in block)
    return block


def as_script(fragment: str) -> str:
    """Turn a fragment with a top-level ``async with`` into a script."""
    body = textwrap.indent(fragment, "    ")
    return f"import asyncio\nfrom aenv import Environment\n\nasync def main():\n{body}\n\nasyncio.run(main())\n"


@pytest.mark.parametrize("arguments", [(), ("./src",)], ids=["aenv run", "aenv run ./src"])
def test_an_environment_defined_as_printed_is_called_as_printed(
    blocks: list[str],
    arguments: tuple[str, ...],
    make_project: Callable[..., Path],
    aenv_run: Callable[..., None],
    run_script: Callable[..., str],
) -> None:
    project = make_project("swe-env", block_with(blocks, "@register_reward"))
    aenv_run(project, *arguments)
    output = run_script(block_with(blocks, 'Environment("swe-env")')).splitlines()
    assert output[0].startswith("[{'type': 'text', 'text': ")
    assert output[1:] == ["Function result: 30", "Reward: 1.0"]


WRITE_FILE = '''
from pathlib import Path

from aenv import register_tool


@register_tool
def write_file(path: str, content: str) -> dict:
    """Write a file."""
    Path("written").mkdir(exist_ok=True)
    return {"bytes": Path("written", path).write_text(content)}
'''


def test_a_file_is_written_as_printed(
    blocks: list[str],
    make_project: Callable[..., Path],
    aenv_run: Callable[..., None],
    run_script: Callable[..., str],
) -> None:
    project = make_project("mini-program", WRITE_FILE)
    aenv_run(project)
    run_script(as_script(block_with(blocks, 'Environment("mini-program')))
    assert (project / "written" / "index.html").read_text() == "<html>...</html>"


def test_an_agent_is_called_as_printed(
    blocks: list[str],
    make_project: Callable[..., Path],
    aenv_run: Callable[..., None],
    run_script: Callable[..., str],
) -> None:
    aenv_run(make_project("agent-b", None, "--template", "agent"))
    output = run_script(as_script(block_with(blocks, 'Environment("agent-b')))
    assert output.startswith("[{'type': 'text', 'text': 'Hello!")
