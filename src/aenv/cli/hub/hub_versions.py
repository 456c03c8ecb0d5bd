"""The command of ``aenv hub`` that deletes a version."""

from __future__ import annotations

import click

from aenv.cli.hub.hub_options import one_version, with_hub
from aenv.cli.output import Output, output_option


@click.command()
@click.argument("name")
@click.option("-v", "--version", help="Version, if not part of NAME.")
@click.option("-r", "--reason", required=True, help="Reason: others may depend on it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def delete(name: str, version: str | None, reason: str, yes: bool, output: Output) -> None:
    """Delete NAME@VERSION and its files. The number of a released version is not given to other content."""
    which, number = one_version(name, version)
    if not yes:
        click.confirm(f"Delete {which}@{number}?", abort=True, err=True)
    with_hub(lambda hub: hub.delete(which, number, reason))
    output.show({"name": which, "version": number, "deleted": True}, lambda: f"deleted {which}@{number}")
