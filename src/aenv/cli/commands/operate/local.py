"""``aenv local``: show and stop the platforms that run on this machine for this user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.output import Output, columns, note, output_option

if TYPE_CHECKING:
    from aenv.client.local_platforms import LocalPaths

RETIRE_SECONDS = 10.0


@click.group(cls=CommandGroup, name="local")
def command() -> None:
    """Show and stop your local platforms: one per interpreter and version, started by Environment when needed."""


@command.command()
@output_option
def status(output: Output) -> int:
    """Show the running platforms and their clients. Exits with 1 if none runs for this interpreter."""
    from aenv.client.local_platforms import LocalPaths, health

    where = LocalPaths.of_user()
    known = health(where)
    found = [_facts(each, where) for each in _running(where)]
    said = {
        "running": known is not None,
        "version": (known or {}).get("version"),
        "socket": str(where.socket),
        "platforms": found,
    }
    text = f"running, version {said['version']}, at {where.socket}" if known else "not running"
    if found:
        text = f"{text}\n\n{_table(found)}"
    output.show(said, lambda: text)
    return 0 if known else 1


@command.command()
@click.option(
    "--all", "everything", is_flag=True, help="Stop the platforms of other interpreters too, even those in use."
)
def stop(everything: bool) -> int:
    """Stop the platform and all of its instances.

    It is the platform of this interpreter and version. Yours of other interpreters end with it unless they are in use.
    """
    from aenv.client.local_platforms import LocalPaths, retire, stop

    where = LocalPaths.of_user()
    click.echo("stopped" if stop(where) else "it was not running")
    for each in _running(where):
        about = _facts(each, where)
        named = f"the platform of {about['interpreter']}, version {about['version']}"
        if everything:
            stop(each)
            click.echo(f"stopped {named}")
        elif about["instances"] or about["clients"]:
            note(f"{named} is in use and keeps running; stop it too with: aenv local stop --all")
        elif retire(each, RETIRE_SECONDS):
            click.echo(f"stopped {named}")
    return 0


@command.command()
@click.option("-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True, help="Number of lines.")
@click.option("--all", "everything", is_flag=True, help="Show the logs of all your platforms, each with its name.")
def logs(lines: int, everything: bool) -> int:
    """Show the last lines of the platform's log."""
    from aenv.client.local_platforms import LocalPaths

    own = LocalPaths.of_user()
    for where in _with_logs(own) if everything else [own]:
        if everything:
            click.echo(f"==> {where.log}")
        if where.log.exists():
            click.echo("\n".join(where.log.read_text(errors="replace").splitlines()[-lines:]))
    return 0


def _running(where: LocalPaths) -> list[LocalPaths]:
    from aenv.client.local_platforms import all_of_user, is_alive

    return [each for each in all_of_user(where) if is_alive(each)]


def _with_logs(where: LocalPaths) -> list[LocalPaths]:
    from aenv.client.local_platforms import KEY, LocalPaths

    folders = sorted((where.state or where.runtime).glob("*/platform.log"), key=lambda path: path.stat().st_mtime)
    names = [path.parent.name for path in folders if KEY.fullmatch(path.parent.name)]
    return [LocalPaths(where.runtime, where.state, name) for name in names]


def _facts(where: LocalPaths, own: LocalPaths) -> dict[str, Any]:
    from aenv.client.local_platforms import PlatformInfo
    from aenv.platform.instances.machine_account import MachineUsage, usage_by_platform

    about, uses = PlatformInfo.read(where), usage_by_platform(where.account).get(where.key, MachineUsage(0, 0))
    identity = about.identity if about else None
    return {
        "key": where.key,
        "own": where.key == own.key,
        "version": identity.version if identity else None,
        "python": identity.python if identity else None,
        "interpreter": identity.prefix if identity else None,
        "source": identity.source if identity else None,
        "engine": identity.engine if identity else None,
        "pid": about.pid if about else None,
        "socket": str(where.socket),
        "clients": uses.leases,
        "instances": uses.instances,
    }


def _table(found: list[dict[str, Any]]) -> str:
    names = ("key", "version", "python", "interpreter", "engine", "pid", "clients", "instances")
    rows = [tuple("-" if each[name] is None else str(each[name]) for name in names) for each in found]
    return columns([tuple(name.upper() for name in names), *rows], indent="")
