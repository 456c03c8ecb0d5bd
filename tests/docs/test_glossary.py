"""Every module that the glossary and the design pages name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, name_of, prose_of

SOURCES = ROOT / "src" / "aenv"
ROOMS = sorted(path.name for path in SOURCES.iterdir() if path.is_dir() and path.name != "__pycache__")
NAMING = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "glossary.md", *(p for p in PAGES if p.parent.name == "design")]
"""Pages that name modules; elsewhere such a path may be one of a user's."""
_PATH = re.compile(rf"`(?:src/aenv/)?((?:{'|'.join(ROOMS)})/[a-z0-9_/.]*)`")


@pytest.mark.parametrize("page", NAMING, ids=name_of)
def test_every_module_that_the_page_names_exists(page: Path) -> None:
    missing = [path for path in _PATH.findall(prose_of(page)) if not (SOURCES / path).exists()]
    assert missing == []


def test_every_term_of_the_glossary_has_a_meaning_and_a_place() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| **")]
    assert len(rows) > 60
    for term, meaning, where in rows:
        assert meaning.endswith("."), term
        paths = re.findall(r"`([\w/.]+)`", where)
        assert paths, term
        assert [path for path in paths if not (SOURCES / path).exists()] == [], term


def test_terms_are_defined_once() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(terms) == len(set(terms))


WHERE = ROOT / "docs" / "design" / "README.md"


def test_every_place_to_start_reading_exists() -> None:
    """The page that tells newcomers where to look: each name must be defined in a module of its row."""
    rows = [line.strip("|").split("|") for line in WHERE.read_text(encoding="utf-8").splitlines() if ".py`" in line]
    questions = [row for row in rows if len(row) == 3]
    assert len(questions) > 15
    for question, modules, names in questions:
        files = [SOURCES / path for path in re.findall(r"`([\w/]+\.py)`", modules)]
        text = "\n".join(file.read_text(encoding="utf-8") for file in files)
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^ *(?:async )?(?:def|class) {name}\b", text, re.MULTILINE), (question, name)
