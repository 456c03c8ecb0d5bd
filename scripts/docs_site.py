"""Hooks of mkdocs: pages from outside of docs/, and links that GitHub and the site read alike.

The pages are written for GitHub: they link to benchmarks/README.md, to CHANGELOG.md, to source files. A few of those
become pages of the site (`PAGES`), and links to them are rewritten. A link to any other file outside of docs/ loses its
target and stays as text, since the site has no copy of that file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "benchmarks/README.md": "project/benchmarks.md",
    "examples/README.md": "project/examples.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|`[^`]*`)*)\]\((?P<target>[^)\s]+)\)")
_FLAGS = re.compile(r"^( *```\w+) [\w ]+$", re.MULTILINE)
"""What a block's first line says to the tests; mkdocs would not take it for a block."""
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages whose sources lie outside of docs/."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links that leave docs/, outside of code blocks."""
    inverse = {target: source for source, target in PAGES.items()}
    source = inverse.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    parts = _FENCED.split(_FLAGS.sub(r"\1", markdown))  # prose and code blocks by turns
    parts[::2] = [rewrite_links(prose, source, page.file.src_uri) for prose in parts[::2]]
    return "".join(parts)


def rewrite_links(prose: str, source: str, here: str) -> str:
    """Replace links: ``source`` is the file in the repository that has them, ``here`` its page on the site."""

    def replace(found: re.Match[str]) -> str:
        target, hash_mark, anchor = found["target"].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        page = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if page is None:
            return found["text"]
        relative = os.path.relpath(page, os.path.dirname(here) or ".")
        return f"{found['image']}[{found['text']}]({relative}{hash_mark}{anchor})"

    return _LINK.sub(replace, prose)
