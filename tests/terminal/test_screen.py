from __future__ import annotations

import pytest

from aenv import Screen


def shown(data: str, rows: int = 4, columns: int = 20) -> str:
    screen = Screen(rows, columns)
    screen.feed(data.encode())
    return screen.text()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("a\r\nb", "a\nb"),
        ("abc\rX", "Xbc"),
        ("ab\x1b[5;5Hc", "ab\n\n\n    c"),  # row 5 of 4 is the last one
        ("one\x1b[2Ktwo", "   two"),
        ("one\x1b[1;2H\x1b[K", "o"),
        ("1\r\n2\r\n3\r\n4\r\n5", "2\n3\n4\n5"),
        ("a\x1b[31mred\x1b[0mb", "aredb"),
        ("\x1b]0;a title\x07text", "text"),
        ("12345678901234567890x", "12345678901234567890\nx"),
        ("日本\x1b[1;3Hx", "日x"),
        ("abc\x1b[1;1H\x1b[2@", "  abc"),
        ("abc\x1b[1;1H\x1b[1P", "bc"),
    ],
)
def test_a_screen_shows_what_a_terminal_would(data: str, text: str) -> None:
    assert shown(data) == text


def test_sequences_and_characters_may_be_split_over_calls() -> None:
    whole = "é\x1b[2;3H日".encode()
    for cut in range(len(whole)):
        screen = Screen(4, 20)
        screen.feed(whole[:cut])
        screen.feed(whole[cut:])
        assert screen.text() == "é\n  日", cut


EDITOR = "before\x1b[?1049h\x1b[2J\x1b[Hediting\x1b[?1049l after"
"""What an editor or a pager writes: it works on the alternate screen, and leaves it again."""


def test_leaving_the_alternate_screen_restores_the_main_screen() -> None:
    assert shown(EDITOR) == "before after"
