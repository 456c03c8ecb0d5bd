"""Parse the pages of the documentation into blocks and prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`]*)$")
_FILE = re.compile(r"^# file: (?P<path>\S+)$")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is where its text starts, counted from 1."""

    page: str
    line: int
    language: str
    flags: tuple[str, ...]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The path in its first line, when it is a file of the page's project."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found["path"] if found else None


def blocks_of(page: Path) -> Iterator[Block]:
    name = name_of(page)
    opened: tuple[int, str, str] | None = None
    text: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, text = (number + 1, fence["info"], fence["indent"]), []
        elif opened is not None and fence and not fence["info"].strip():
            start, info, _ = opened
            language, *flags = info.split() or [""]
            yield Block(name, start, language, tuple(flags), "\n".join(text))
            opened = None
        elif opened is not None:
            text.append(line.removeprefix(opened[2]))
    assert opened is None, f"{name}: the block before line {opened[0]} does not end"


def prose_of(page: Path) -> str:
    """Return the page without its code blocks."""
    lines, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            lines.append(line)
    return "\n".join(lines)
