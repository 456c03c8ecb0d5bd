"""``aenv list``: list the environments in the hub."""

from __future__ import annotations

import click

from aenv.cli.hub.hub_options import document, table, with_hub
from aenv.cli.output import Output, format_option, note


@click.command(name="list")
@click.option("-n", "--name", help="Only names with this prefix.")
@click.option("-t", "--tags", multiple=True, help="Only environments with this tag; repeated, or as a,b, all of them.")
@click.option(
    "-l", "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number of results."
)
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Number of results to skip.")
@format_option(older_offset=True)
def command(name: str | None, tags: tuple[str, ...], limit: int, offset: int, output: Output | int) -> None:
    """List the environments in the hub, each with its default version."""
    if not isinstance(output, Output):  # the earlier meaning of -o
        offset, output = output, Output.TABLE
        note(f"-o is the output; to skip results, use --offset {offset}")
    wanted = [tag.strip() for given in tags for tag in given.split(",") if tag.strip()]
    page = with_hub(lambda hub: hub.list(name, wanted or None, limit=limit, offset=offset))
    output.show([document(each) for each in page.items], lambda: table(page.items))
    if page.next is not None:
        note(f"more results: --offset {offset + len(page.items)}")
