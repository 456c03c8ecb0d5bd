"""``aenv config``: the user's settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.output import Output, columns, format_option, json_text, note

if TYPE_CHECKING:
    from aenv.config import Settings


@click.group(cls=CommandGroup, name="config")
def command() -> None:
    """Show and change your settings: which hub, which registry, which platform."""


@command.command()
@click.option("-k", "--key", help="Only this setting, or this group of settings.")
@format_option()
def show(key: str | None, output: Output) -> None:
    """Show the effective settings: defaults, your file, and variables. Secrets stay hidden."""
    from aenv import config

    document: Any = config.shown(config.load())
    if key is not None:
        for part in config.resolve(key).split("."):
            document = document[part]
    output.show(document, lambda: _table(document) if isinstance(document, dict) else _text(document))


@command.command()
@click.argument("key")
def get(key: str) -> None:
    """Print one setting. KEY is its name, like hub_config.hub_backend, or a short one, like hub_backend."""
    from aenv import config

    value = config.value_of(config.load(), config.resolve(key))
    click.echo(_text(value))


@command.command(name="set", context_settings={"ignore_unknown_options": True})  # a value may begin with a dash
@click.argument("key")
@click.argument("value")
def set_(key: str, value: str) -> None:
    """Change one setting in your file. A VALUE of - is read from standard input, out of the shell history."""
    from aenv import config

    if value == "-":
        value = sys.stdin.readline().rstrip("\r\n")
    path, full = config.find(), config.resolve(key)
    understood = config.set_value(path, full, value)
    note(f"{full} = {config.HIDDEN if full in config.SECRET else _text(understood)}")
    for name in config.variables_over(full):
        note(f"Warning: the variable {name} is set and overrides it")


@command.command()
@click.option("--path", type=click.Path(path_type=Path, dir_okay=False), help="File to create.  [default: your own]")
def init(path: Path | None) -> None:
    """Create a settings file with the defaults. An existing file is kept."""
    from aenv import config

    target = path or config.find()
    if target.exists():
        config.read(target)
        note(f"{target} exists already")
        return
    config.write(config.Settings().model_dump(exclude_none=True), target)
    click.echo(target)


@command.command()
@click.option("--force", is_flag=True, help="Do not ask for confirmation, and replace even an invalid file.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def reset(force: bool, yes: bool) -> None:
    """Reset the settings to the defaults. The old file is kept as a .bak beside it."""
    from aenv import config

    path = config.find()
    if path.exists():
        if not force:
            config.read(path)
            if not yes:
                click.confirm(f"Replace {path} with the defaults?", abort=True, err=True)
        path.replace(path.with_name(f"{path.name}.bak"))
    config.write(config.Settings().model_dump(exclude_none=True), path)
    click.echo(path)


@command.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def load(file: Path) -> None:
    """Import all settings of FILE, written by `aenv config export`."""
    from aenv import config

    path = config.find()
    config.read(path)
    config.write(config.read(file), path)
    click.echo(path)


@command.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
def export(output: Path | None) -> None:
    """Export your settings, secrets included, to a file that only you can read, or print them."""
    from aenv import config

    settings: Settings = config.validate(config.read(config.find()), "the settings")
    document = settings.model_dump(exclude_none=True)
    if output is None:
        click.echo(json_text(document, indent=2))
        return
    config.write(document, output)
    click.echo(output)


@command.command()
def path() -> None:
    """Print the path of your settings file."""
    from aenv import config

    click.echo(config.find())


def _table(document: dict[str, Any]) -> str:
    from aenv import config

    return columns([(key, _text(value)) for key, value in config.leaves(document)], indent="")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
