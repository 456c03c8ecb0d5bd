"""``aenv release``: make a version final."""

from __future__ import annotations

import click

from aenv.cli.hub.hub_options import document, one_version, with_hub
from aenv.cli.output import Output, output_option


@click.command(name="release")
@click.argument("name", required=False)
@click.option("-v", "--version", help="Version, if not part of NAME.")
@output_option
def command(name: str | None, version: str | None, output: Output) -> None:
    """Make NAME@VERSION final: it never changes again, and NAME stands for the newest such version.

    Without NAME it is the project in the current directory.
    """
    which, number = one_version(name, version)
    released = with_hub(lambda hub: hub.release(which, number))
    output.show(document(released), lambda: f"{which}@{number} is released")
