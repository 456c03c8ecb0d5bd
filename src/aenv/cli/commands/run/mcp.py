"""``aenv mcp``: connect desktop programs that speak MCP to environments."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.hub.hub_options import reference, with_hub
from aenv.cli.mcp.mcp_hosts import HOSTS, StdioServer, aenv_program
from aenv.cli.output import note
from aenv.errors import AEnvError, NotFound, UsageError

INHERITED = ("AENV_SYSTEM_URL", "AENV_HUB_URL", "AENV_DATA_DIR")
"""Variables that are printed if they are set: a desktop program does not have those of the shell."""


@click.group(cls=CommandGroup, name="mcp")
def command() -> None:
    """Connect desktop programs that speak MCP to environments."""


@command.command()
@click.argument("name")
@click.option(
    "--for",
    "host",
    type=click.Choice(list(HOSTS)),
    default="claude",
    show_default=True,
    help="Program to print the configuration of.",
)
@click.option("--as", "title", help="Name of the server in that program.  [default: the environment's name]")
@click.option(
    "--env", "names", multiple=True, metavar="VARIABLE", help="Include this variable and its value; may be repeated."
)
def config(name: str, host: str, title: str | None, names: tuple[str, ...]) -> int:
    """Print the configuration with which a desktop program starts environment NAME.

    NAME is a project on this machine, which the program then serves with 'aenv run --stdio', or an environment of the
    hub, which runs in a sandbox. The project in the current folder is taken if its config.json has this name, and this
    version if one is given.
    """
    from aenv.client.local_lease import find_project

    found = find_project(name)
    if found is None:
        _warn_of_a_missing(name)
    own = ["run", str(found[1]), "--stdio"] if found is not None else ["mcp", "serve", name]
    called = title or (found[0] if found is not None else name).partition("@")[0]
    program, first = aenv_program()
    chosen = HOSTS[host]
    click.echo(chosen.text(StdioServer(called, program, [*first, *own], _variables(names))))
    note(f"It serves the project at {found[1]}." if found else f"It serves {name} of the hub, in a sandbox.")
    note(f"For {chosen.title}: add this to {chosen.file}, and restart it.")
    if os.environ.get("AENV_API_KEY") and "AENV_API_KEY" not in names:
        note("AENV_API_KEY is not printed; include it with --env AENV_API_KEY if the environment needs it.")
    return 0


def _warn_of_a_missing(name: str) -> None:
    """Warn if the hub has no such environment; it may not be published yet, or the hub may be down."""
    ref = reference(name)
    try:
        with_hub(lambda hub: hub.get(ref.name, ref.want))
    except NotFound as error:
        note(f"Warning: {error.message}; the configuration works once it is published with 'aenv push'.")
    except AEnvError as error:
        note(f"Warning: the hub could not be asked for {name}: {error.message}")


def _variables(names: tuple[str, ...]) -> dict[str, str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise UsageError(f"--env: {missing[0]} is not set here", {"hint": "Set it for this command."})
    return {name: os.environ[name] for name in (*INHERITED, *names) if os.environ.get(name)}


@command.command()
@click.argument("name")
def serve(name: str) -> int:
    """Create an instance of environment NAME, and serve it over stdin and stdout until the program that started this
    closes them.

    Its tools run in a sandbox, or on the platform at AENV_SYSTEM_URL.
    """
    from aenv.cli.mcp.stdio_bridge import bridge
    from aenv.runtime.stdio import HostPipes

    pipes = HostPipes.take()
    asyncio.run(bridge(str(Path(name).resolve()) if os.sep in name else name, pipes))
    return 0
