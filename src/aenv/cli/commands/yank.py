"""``aenv yank``: take a version out of sight."""

from __future__ import annotations

import click

from aenv.cli.hub import document, one_version, with_hub
from aenv.cli.output import Output, output_option
from aenv.errors import UsageError


@click.command(name="yank")
@click.argument("name")
@click.option("-v", "--version", help="The version, when NAME does not say it.")
@click.option("-r", "--reason", help="Why.")
@click.option("--undo", is_flag=True, help="Take it back.")
@output_option
def command(name: str, version: str | None, reason: str | None, undo: bool, output: Output) -> None:
    """Take NAME@VERSION out of sight: only who names that very version or its digest still gets it."""
    which, number = one_version(name, version)
    if not undo and not reason:
        raise UsageError("say why with --reason; people will read it")
    changed = with_hub(lambda hub: hub.yank(which, number, None if undo else reason))
    output.show(
        document(changed), lambda: f"{which}@{number} is {'not ' if undo else ''}yanked{' any more' if undo else ''}"
    )
