"""The documentation builds as a site: strict links, every public name, nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import aenv
import aenv.errors
from scripts import docs_site
from tests.docs.pages import ROOT

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that make a browser load something, with the attribute that says what."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class _Page(HTMLParser):
    """The ids of a page and the addresses that a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        address = given.get(LOADING.get(tag, ""))
        if address and given.get("rel") != "canonical":
            self.loaded.append(address)


def pages_of(site: Path) -> Iterator[tuple[str, _Page]]:
    for file in sorted(site.rglob("*.html")):
        yield str(file.relative_to(site)), _Page(file.read_text(encoding="utf-8"))


def test_the_site_has_every_page_and_the_search_index(site: Path) -> None:
    built = {name for name, _ in pages_of(site)}
    sources = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    wanted = {
        str(path.with_name("index.html" if path.name == "README.md" else f"{path.stem}.html")) for path in sources
    }
    assert wanted | {f"{Path(page).with_suffix('.html')}" for page in docs_site.PAGES.values()} <= built
    assert (site / "search" / "search_index.json").stat().st_size > 100_000


def test_every_public_name_is_on_the_page_of_the_python_api(site: Path) -> None:
    ids = _Page((site / "reference" / "python.html").read_text(encoding="utf-8")).ids
    assert {f"aenv.{name}" for name in aenv.__all__} <= ids


def test_every_error_is_on_the_page_of_the_python_api(site: Path) -> None:
    text = (site / "reference" / "python.html").read_text(encoding="utf-8")
    ids = _Page(text).ids
    names = [
        name for name, value in vars(aenv.errors).items() if isinstance(value, type) and "errors" in value.__module__
    ]
    assert len(names) > 20
    assert [name for name in names if not {f"aenv.{name}", f"aenv.errors.{name}"} & ids] == []


def test_every_code_block_is_rendered_as_one(site: Path) -> None:
    left = [str(file) for file in site.rglob("*.html") if re.search(r"<p>[^<]*```", file.read_text(encoding="utf-8"))]
    assert left == []


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    outside = {name: found for name, page in pages_of(site) if (found := [a for a in page.loaded if "//" in a])}
    assert outside == {}
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"url\(['\"]?(https?:)?//", text), sheet


def test_links_out_of_docs_lead_to_pages_of_the_site_or_become_text() -> None:
    rewrite = docs_site.rewrite_links
    assert (
        rewrite("[f](../../benchmarks/README.md#x)", "docs/design/a.md", "design/a.md")
        == "[f](../project/benchmarks.md#x)"
    )
    assert rewrite("[f](docs/concepts.md)", "SECURITY.md", "project/security.md") == "[f](../concepts.md)"
    assert rewrite("[`a.py`](02_hello.py)", "examples/README.md", "project/examples.md") == "`a.py`"
    assert rewrite("[o](https://example.com/)", "docs/a.md", "a.md") == "[o](https://example.com/)"
