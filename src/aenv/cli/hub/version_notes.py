"""Commands that mark a version (deprecate, yank) with a reason, or undo it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from aenv.cli.hub.hub_options import document, one_version, with_hub
from aenv.cli.output import Output, output_option
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.schema.envhub import EnvSummary, Hub

Say = Callable[["Hub", str, str, str | None], Awaitable["EnvSummary"]]


def advice(name: str, state: str, help_text: str, say: Say) -> click.Command:
    """Build a command that sets this state of a version, with a reason."""

    @click.command(name=name, help=help_text)
    @click.argument("name")
    @click.option("-v", "--version", help="Version, if not part of NAME.")
    @click.option("-r", "--reason", help="Reason, and what to use instead.")
    @click.option("--undo", is_flag=True, help="Undo it.")
    @output_option
    def command(name: str, version: str | None, reason: str | None, undo: bool, output: Output) -> None:
        which, number = one_version(name, version)
        if not undo and not reason:
            raise UsageError("--reason is required; users of the version will read it")
        changed = with_hub(lambda hub: say(hub, which, number, None if undo else reason))
        told = f"is not {state} any more" if undo else f"is {state}"
        output.show(document(changed), lambda: f"{which}@{number} {told}")

    return command
