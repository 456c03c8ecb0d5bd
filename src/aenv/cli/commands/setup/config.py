"""``aenv config``: the user's settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aenv.cli.output import Output, columns, format_option, note

if TYPE_CHECKING:
    from aenv.config import Settings


@click.group(name="config")
def command() -> None:
    """Show and change your settings: which hub, which registry, which platform."""


@command.command()
@click.option("-k", "--key", help="Only this setting, or this group of them.")
@format_option()
def show(key: str | None, output: Output) -> None:
    """Show the settings as they count: defaults, your file, and variables. Secrets stay hidden."""
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
    """Change one setting in your file. A VALUE of - is read from standard input, so that no history keeps it."""
    from aenv import config

    if value == "-":
        value = sys.stdin.readline().rstrip("\r\n")
    path, full = config.find(), config.resolve(key)
    understood = config.set_value(path, full, value)
    note(f"{full} = {config.HIDDEN if full in config.SECRET else _text(understood)}")
    for name in config.variables_over(full):
        note(f"Warning: the variable {name} is set, and wins over it")


@command.command()
@click.option("--path", type=click.Path(path_type=Path, dir_okay=False), help="Make it here.  [default: your own]")
def init(path: Path | None) -> None:
    """Make a file with the defaults. One that is there stays as it is."""
    from aenv import config

    target = path or config.find()
    if target.exists():
        config.read(target)
        note(f"{target} is there already")
        return
    config.write(config.Settings().model_dump(exclude_none=True), target)
    click.echo(target)


@command.command()
@click.option("--force", is_flag=True, help="Do not ask, and replace even a file that is not valid.")
def reset(force: bool) -> None:
    """Put the defaults back. The old file is kept beside it, with .bak at the end of its name."""
    from aenv import config

    path = config.find()
    if path.exists():
        if not force:
            config.read(path)
            click.confirm(f"Replace {path} with the defaults?", abort=True)
        path.replace(path.with_name(f"{path.name}.bak"))
    config.write(config.Settings().model_dump(exclude_none=True), path)
    click.echo(path)


@command.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def load(file: Path) -> None:
    """Take over all settings of FILE, which `aenv config export` wrote."""
    from aenv import config

    path = config.find()
    config.read(path)
    config.write(config.read(file), path)
    click.echo(path)


@command.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
def export(output: Path | None) -> None:
    """Write your settings, secrets included, to a file for you alone, or print them."""
    from aenv import config

    settings: Settings = config.validate(config.read(config.find()), "the settings")
    document = settings.model_dump(exclude_none=True)
    if output is None:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    config.write(document, output)
    click.echo(output)


@command.command()
def path() -> None:
    """Print where your file is, or would be."""
    from aenv import config

    click.echo(config.find())


def _table(document: dict[str, Any]) -> str:
    from aenv import config

    return columns([(key, _text(value)) for key, value in config.leaves(document)], indent="")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
