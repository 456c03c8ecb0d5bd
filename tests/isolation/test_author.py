"""The author's code never runs before the door is locked, not even at import."""

from __future__ import annotations

from pathlib import Path

import pytest

from aenv.errors import AEnvError
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import make_project

SEEN = """
seen = {line.split(":")[0]: int(line.split(":")[1], 16)
        for line in open("/proc/self/status") if line.startswith(("CapEff", "Seccomp:", "NoNewPrivs"))}
"""
TOOL = """
from aenv import register_tool

@register_tool
def look() -> dict[str, int]:
    return payload.seen
"""


@pytest.mark.parametrize(
    ("place", "statement"),
    [
        ("payload.py", "import app.payload as payload"),
        ("payload.py", "from app import payload"),
        ("src/payload.py", "import payload"),
        ("src/payload.py", "import app.src.payload as payload"),
        ("src/inner/payload.py", "from inner import payload"),
        ("lib/payload.py", "import app.lib.payload as payload"),
        ("payload.py", "import sys; sys.path.insert(0, '/app')\nimport payload"),
    ],
)  # fmt: skip
def test_a_module_of_the_projects_runs_locked_however_it_is_imported(
    tmp_path: Path, place: str, statement: str
) -> None:
    project = make_project(tmp_path, f"import sys\nsys.path.append('/')\n{statement}\n{TOOL}", name="sly")
    path = project / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SEEN)
    with SyncEnvironment(str(project), max_retries=0) as env:
        assert env.call_tool("look").data == {"CapEff": 0, "NoNewPrivs": 1, "Seccomp": 2}


def test_an_import_that_would_end_the_warm_parent_is_told_as_the_authors(tmp_path: Path) -> None:
    project = make_project(tmp_path, "import unittest.__main__\n" + TOOL, name="sly")
    with pytest.raises(AEnvError, match="SystemExit"):
        SyncEnvironment(str(project), max_retries=0).initialize()
