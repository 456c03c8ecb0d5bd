"""``aenv serve``: the platform as a server."""

from __future__ import annotations

import click

from aenv.errors import UsageError


@click.command(name="serve")
@click.option("--local", is_flag=True, help="Serve this user on this machine, on a unix socket.")
@click.option(
    "--linger",
    type=float,
    default=600.0,
    show_default=True,
    envvar="AENV_LOCAL_LINGER",
    help="Seconds to stay after the last client has gone.",
)
@click.option(
    "--engine",
    type=click.Choice(["native", "gvisor", "process"]),
    default="native",
    show_default=True,
    envvar="AENV_ENGINE",
    help="What instances are: sandboxes, stronger and slower ones, or plain processes without any isolation.",
)
@click.option(
    "--pool",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    envvar="AENV_POOL",
    help="Sandboxes of one kind to have ready, at the most, while they are being asked for.",
)
def command(local: bool, linger: float, engine: str, pool: int) -> int:
    """Serve instances of environments.

    With --local it is the platform that Environment starts by itself; there is no need to run this by hand.
    """
    import logging
    import sys

    from aenv.api.local import serve
    from aenv.client.local import LocalPaths
    from aenv.core.logging import level_from_environment, setup_logging
    from aenv.hub.open import open_hub

    if not local:
        raise UsageError("only 'aenv serve --local' is there so far")
    setup_logging(logging.StreamHandler(sys.stderr), level_from_environment())
    return serve(LocalPaths.of_user(), linger=linger, engine=engine, pool=pool, open_hub=open_hub)
