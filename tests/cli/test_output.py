"""Foreign text in the output of commands: terminals obey control characters, so none of them is sent."""

from __future__ import annotations

import json

import click
import pytest

from aenv.cli.output import Output, columns, note

TITLE = "\x1b]0;title\x07"
CLEAR = "\x9b2J"


def test_json_output_has_no_control_character_and_keeps_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": f"a{TITLE}{CLEAR}\x7f\u00e9", "list": ["\x85"]}
    Output.JSON.show(value, str)
    printed = capsys.readouterr().out
    assert all(letter.isprintable() for letter in printed.replace("\n", ""))
    assert json.loads(printed) == value
    assert "\u00e9" in printed, "letters are not escaped"


def test_text_output_shows_control_characters_and_keeps_colours(capsys: pytest.CaptureFixture[str]) -> None:
    red = click.style("red", fg="red")
    Output.TABLE.show(None, lambda: f"{columns([('a', TITLE), ('b', CLEAR)])}\n\t{red}")
    note(f"{CLEAR}\rOK")
    printed = capsys.readouterr()
    assert printed.out.startswith("  a  \\x1b]0;title\\x07\n  b  \\x9b2J\n\t")
    assert printed.err == "\\x9b2J\\x0dOK\n"
