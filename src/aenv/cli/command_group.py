"""A group of commands: help that is not cut off, and the command that was meant by a misspelled one."""

from __future__ import annotations

import difflib

import click

_SENTENCE = 200
"""Characters of a command's first sentence that help shows, on several lines if need be."""


class CommandGroup(click.Group):
    """A group of commands. Groups inside are of the same class."""

    group_class = type

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise click.UsageError(f"unknown command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_SENTENCE)) for name, each in commands if each and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
