"""``aenv local``: look after the platform that runs on this machine."""

from __future__ import annotations

import click

from aenv.cli.output import Output, output_option


@click.group(name="local")
def command() -> None:
    """Look after the local platform, which Environment starts by itself."""


@command.command()
@output_option
def status(output: Output) -> int:
    """Say whether it runs, and what runs on it."""
    from aenv.client.local import LocalPaths, health

    where = LocalPaths.of_user()
    known = health(where)
    facts = {"running": known is not None, "version": (known or {}).get("version"), "socket": str(where.socket)}
    text = f"running, version {facts['version']}, at {where.socket}" if known else "not running"
    output.show(facts, lambda: text)
    return 0 if known else 1


@command.command()
def stop() -> int:
    """End it, and all instances with it."""
    from aenv.client.local import LocalPaths, stop

    click.echo("stopped" if stop(LocalPaths.of_user()) else "it was not running")
    return 0


@command.command()
@click.option("-n", "--lines", type=int, default=50, show_default=True, help="How many lines.")
def logs(lines: int) -> int:
    """Show the last lines of its log."""
    from aenv.client.local import LocalPaths

    path = LocalPaths.of_user().log
    if path.exists():
        click.echo("\n".join(path.read_text(errors="replace").splitlines()[-lines:]))
    return 0
