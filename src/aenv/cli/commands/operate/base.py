"""``aenv base``: the base systems that instances can run on instead of this machine's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.output import Output, columns, output_option


@click.group(cls=CommandGroup, name="base")
def command() -> None:
    """Add, list and remove the base systems that instances can run on.

    A base is a root file system: that of another release, or of an image. A config.json names one as
    deployConfig.base.
    """


@command.command()
@click.argument("name")
@click.argument("path", type=click.Path(path_type=Path))
@output_option
def add(name: str, path: Path, output: Output) -> int:
    """Add the system at PATH under NAME on this machine.

    PATH is a folder or a tar with a root file system, an OCI image layout (a folder or a tar), or what docker save
    wrote. A folder with a root file system is used where it is; everything else is unpacked once.
    """
    from aenv.images import base_systems

    base = asyncio.run(base_systems.BaseSystems().add(name, path))
    output.show({"name": name, "path": str(base.root)}, lambda: f"{name} is {base.root}")
    return 0


@command.command(name="list")
@output_option
def list_bases(output: Output) -> int:
    """List the base systems."""
    from aenv.images import base_systems

    known = base_systems.names()
    rows = [{"name": name, "path": str(path)} for name, path in known.items()]
    output.show(rows, lambda: columns((row["name"], row["path"]) for row in rows) if rows else "there are none")
    return 0


@command.command()
@click.argument("name")
def remove(name: str) -> int:
    """Remove the base system NAME, and its unpacked files."""
    from aenv.images import base_systems

    base_systems.remove(name)
    click.echo(f"removed {name}")
    return 0
