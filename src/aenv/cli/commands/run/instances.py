"""``aenv instances``: the older name of ``aenv instance list``."""

from __future__ import annotations

import click

from aenv.cli.commands.run.instance import list_command

command = click.Command(
    "instances",
    callback=list_command.callback,
    params=list_command.params,
    help="List instances; the same as 'aenv instance list'.",
)
