"""The template of `aenv init -t web`: its tests pass, and its view travels with the bundle."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from aenv import Environment
from aenv.errors import ConfigError
from aenv.project import scaffold
from aenv.project.bundles.packing import pack
from tests.conftest import run


def test_its_own_tests_pass(tmp_path: Path) -> None:
    project = scaffold.create("my-board", template="web", parent_dir=tmp_path).root
    done = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_its_task_is_solved_in_a_sandbox(sandboxes: None, tmp_path: Path) -> None:
    project = scaffold.create("my-board", template="web", parent_dir=tmp_path).root

    async def main() -> tuple[object, object]:
        async with Environment(str(project)) as env:
            await env.call_tool("add_note", {"text": "tea"})
            await env.call_tool("move_note", {"text": "tea", "column": "done"})
            return await env.call_function("board", {}), await env.call_reward({"wanted": {"tea": "done"}})

    assert run(main()) == ({"tea": "done"}, 1.0)


def test_the_view_is_part_of_the_bundle(tmp_path: Path) -> None:
    project = scaffold.create("my-board", template="web", parent_dir=tmp_path).root
    paths = {file.path for file in pack(project).bundle.files}
    assert {"console/index.html", "console/board.js", "console/board.css"} <= paths


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ("{", "the file: Invalid JSON"),
        ('{"show": []}', "show: List should have at least 1 item"),
        ('{"show": [{"kind": "tabel"}]}', "show/0/kind: Input should be"),
        ('{"show": [{"kind": "button"}]}', "a button needs a function"),
        ('{"show": [{"kind": "text", "at": "score"}]}', "show/0/at"),
        ('{"show": [{"kind": "text"}], "functoin": "state"}', "functoin: Extra inputs are not permitted"),
    ],
)
def test_an_invalid_layout_is_refused_where_a_project_is_packed(tmp_path: Path, layout: str, why: str) -> None:
    project = scaffold.create("my-board", template="web", parent_dir=tmp_path).root
    (project / "console" / "layout.json").write_text(layout)
    with pytest.raises(ConfigError, match=re.escape(why)):
        pack(project)
