"""Output of commands: JSON, tables, notes and colours.

The result goes to stdout, and with ``--output json`` it is the only thing there, so it can be piped.
Everything else that is said to people goes to stderr.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class Output(StrEnum):
    """Output format of a command."""

    TABLE = "table"
    JSON = "json"

    def show(self, result: Any, text: Callable[[], str]) -> None:
        """Print ``result`` as JSON, or the output of ``text()``."""
        if self is Output.JSON:
            click.echo(json.dumps(result, indent=2, ensure_ascii=False, default=str))
        else:
            click.echo(text())


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


def format_option(default: Output = Output.TABLE) -> Callable[[F], F]:
    """``-f/--format table|json``, or ``--output``, as the argument ``output``."""
    return click.option(
        "-f",
        "--format",
        "--output",
        "output",
        type=click.Choice([each.value for each in Output]),
        default=default.value,
        callback=lambda ctx, param, value: Output(value),
        help=f"How to show the result.  [default: {default.value}]",
    )


def note(text: str) -> None:
    """Print a message to stderr: not part of the result."""
    click.echo(text, err=True, color=color())


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
