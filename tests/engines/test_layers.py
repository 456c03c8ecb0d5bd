from __future__ import annotations

from pathlib import Path

import pytest

from aenv.engines.imports import imported_by
from aenv.engines.layers import requirements_of
from aenv.errors import LoadError


def asked(folder: Path, text: str) -> list[str]:
    (folder / "requirements.txt").write_text(text)
    return requirements_of(folder)


def test_only_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    assert requirements_of(tmp_path) == []
    text = "# ours\naenvironment>=0.1\n\npytest\nno-such-package-a==1.0 # why\n"
    text += "no-such-package-b[x]>=2 ; python_version > '3'\n"
    assert asked(tmp_path, text) == [
        "no-such-package-a==1.0",
        "no-such-package-b[x]>=2 ; python_version > '3'",
    ]


@pytest.mark.parametrize(
    "line",
    ["evil @ file:///tmp/evil", "--target=/etc", "-r other.txt", "./local", "/abs", "git+https://host/x", "-e ."],
)
def test_a_line_that_would_run_code_on_the_host_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(LoadError, match="only names and versions"):
        asked(tmp_path, f"{line}\n")


def test_imports_of_others_are_told_from_the_projects_own(tmp_path: Path) -> None:
    (tmp_path / "src" / "inner").mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text(
        "import json, numpy.linalg\nfrom helper import x\nfrom . import b\nfrom aenv import register_tool\n"
        "from src.b import y\nfrom inner import z\ndef f():\n    import lazy\n"
    )
    (tmp_path / "src" / "helper.py").write_text("import this is broken")
    (tmp_path / "src" / "b.py").write_text("from collections import abc\n")
    (tmp_path / "src" / "test_a.py").write_text("import pytest\n")
    assert imported_by(tmp_path) == ["json", "numpy.linalg", "collections"]
