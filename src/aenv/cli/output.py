"""Output of commands: JSON, tables, notes and colours.

The result goes to stdout, and with ``--output json`` it is the only thing there, so it can be piped.
Everything else that is said to people goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


_CONTROLS = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, except line breaks and tabs; the group: sequences that set colours."""
_NOT_ESCAPED = re.compile(r"[\x7f-\x9f]")
"""Control characters that `json` does not escape: terminals obey them as well."""


def json_text(value: Any, indent: int | None = None) -> str:
    """Format a value as JSON, with all control characters escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    return _NOT_ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def visible(text: str) -> str:
    """Return text with control characters made visible: names and messages come from other people.

    Sequences that set colours are kept.
    """
    return _CONTROLS.sub(lambda found: found[1] or f"\\x{ord(found[0]):02x}", text)


class Output(StrEnum):
    """Output format of a command."""

    TABLE = "table"
    JSON = "json"

    def show(self, result: Any, text: Callable[[], str]) -> None:
        """Print ``result`` as JSON, or the output of ``text()``."""
        click.echo(json_text(result, indent=2) if self is Output.JSON else visible(text()))


def output_option(command: F) -> F:
    """``-o/--output table|json``, as the argument ``output``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([each.value for each in Output]),
        default=Output.TABLE.value,
        callback=lambda ctx, param, value: Output(value),
        help="How to show the result.  [default: table]",
    )(command)


class _OutputOrOffset(click.Choice[str]):
    """An output format, or a number: the offset that ``-o`` was in earlier versions of ``aenv list``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if isinstance(value, str) and value.isdigit() else super().convert(value, param, ctx)


def format_option(default: Output = Output.TABLE, *, older_offset: bool = False) -> Callable[[F], F]:
    """``-o/--output table|json``, or ``-f/--format``, as the argument ``output``.

    ``older_offset``: a number is accepted, too, and passed as an integer.
    """
    choice = _OutputOrOffset if older_offset else click.Choice
    return click.option(
        "-o",
        "-f",
        "--format",
        "--output",
        "output",
        type=choice([each.value for each in Output]),
        default=default.value,
        callback=lambda ctx, param, value: int(value) if value.isdigit() else Output(value),
        help=f"How to show the result.  [default: {default.value}]",
    )


def note(text: str) -> None:
    """Print a message to stderr: not part of the result."""
    click.echo(visible(text), err=True, color=color())


def color() -> bool | None:
    """Return False if NO_COLOR is set, else None: click then uses colours on a terminal only."""
    return False if os.environ.get("NO_COLOR") else None


def columns(rows: Iterable[Sequence[str]], indent: str = "  ") -> str:
    """Format rows as aligned columns."""
    rows = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"{indent}{line.rstrip()}" for line in lines)


def size(count: int) -> str:
    """Format a number of bytes."""
    for unit, step in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} bytes"
