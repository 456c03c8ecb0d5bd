"""What our screen shows that pyte does not: the reason why it is hand-written (docs/design/hand-written.md).

When pyte learns all of these, a test here fails, and pyte can take the place of our own screen.
"""

from __future__ import annotations

import pyte
import pytest

from aenv import Screen

ROWS, COLUMNS = 24, 80
BEYOND_PYTE = {
    "a full-screen program leaves the shell's text": (
        b"$ vi\r\n\x1b[?1049h\x1b[2J\x1b[H~ editor\x1b[?1049l$ ",
        "$ vi\n$",
    ),
    "a character is repeated": (b"-\x1b[4b", "-----"),
    "lines are drawn in a UTF-8 terminal": (b"\x1b(0lqk\x1b(B", "┌─┐"),
    "a device control string is not text": (b"\x1bP1$r0m\x1b\\ok", "ok"),
    "a soft reset is not text": (b"\x1b[!pok", "ok"),
}
SHARED = {
    "text wraps at the edge": (b"x" * 81, "x" * 80 + "\nx"),
    "a wide character takes two columns": ("日本x".encode(), "日本x"),
    "a region scrolls by itself": (b"a\r\nb\r\nc\x1b[1;2r\x1b[2;1H\nX", "b\nX\nc"),
    "characters are erased": (b"abcdef\r\x1b[3X", "   def"),
    "a title is not text": (b"\x1b]0;title\x07ok", "ok"),
}


def ours(data: bytes) -> str:
    screen = Screen(ROWS, COLUMNS)
    screen.feed(data)
    return _trimmed(screen.text().split("\n"))


def theirs(data: bytes) -> str:
    screen = pyte.Screen(COLUMNS, ROWS)
    pyte.ByteStream(screen).feed(data)
    return _trimmed(screen.display)


def _trimmed(lines: list[str]) -> str:
    return "\n".join(line.rstrip() for line in lines).rstrip()


@pytest.mark.parametrize("what", BEYOND_PYTE)
def test_our_screen_shows_what_pyte_does_not(what: str) -> None:
    data, shown = BEYOND_PYTE[what]
    assert ours(data) == shown
    assert theirs(data) != shown, f"pyte can do this now: {what}"


@pytest.mark.parametrize("what", SHARED)
def test_both_screens_show_the_same(what: str) -> None:
    data, shown = SHARED[what]
    assert ours(data) == shown
    assert theirs(data) == shown
