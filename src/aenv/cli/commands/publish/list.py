"""``aenv list``: the environments in the hub."""

from __future__ import annotations

import click

from aenv.cli.hub_options import document, table, with_hub
from aenv.cli.output import Output, format_option, note


@click.command(name="list")
@click.option("-n", "--name", help="Only those whose names begin so.")
@click.option("-t", "--tags", multiple=True, help="Only those with this tag; several, or a,b, must all be there.")
@click.option("-l", "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many.")
@click.option(
    "-o", "--offset", type=click.IntRange(0), default=0, show_default=True, help="Leave out the first so many."
)
@format_option()
def command(name: str | None, tags: tuple[str, ...], limit: int, offset: int, output: Output) -> None:
    """List the environments in the hub, with the version that each name stands for."""
    wanted = [tag.strip() for given in tags for tag in given.split(",") if tag.strip()]
    page = with_hub(lambda hub: hub.list(name, wanted or None, limit=limit, offset=offset))
    output.show([document(each) for each in page.items], lambda: table(page.items))
    if page.next is not None:
        note(f"There are more: --offset {offset + len(page.items)}")
