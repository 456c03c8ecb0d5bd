"""Every link between pages has a target, and the index links to every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, name_of, prose_of

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def links_of(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()]", " ", code[0]), prose_of(page))
    return [found["target"] for found in _LINK.finditer(text)]


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of headings."""
    titles = re.findall(r"^#+ +(.+?) *$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links_of(page):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target}: there is no {path}"
        assert there.is_relative_to(ROOT), f"{target} leads out of the repository"
        if anchor:
            assert anchor in anchors_of(there), f"{target}: there is no such heading"


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / target.partition("#")[0]).resolve() for target in links_of(index)}
    missing = [name_of(page) for page in PAGES if page.is_relative_to(index.parent) and page not in (named | {index})]
    assert not missing
