"""The design pages name every library of the base install."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_dependency_of_the_base_install_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[<>=!~; \[]", line)[0].replace("-", "_") for line in project["dependencies"]]
    page = (ROOT / "docs" / "design" / "hand-written.md").read_text()
    assert len(names) == 7, "hand-written.md tells the number"
    assert not [name for name in names if f"`{name}`" not in page]
