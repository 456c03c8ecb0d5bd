"""``aenv search``: search the hub for environments."""

from __future__ import annotations

import click

from aenv.cli.hub.hub_options import document, table, with_hub
from aenv.cli.output import Output, format_option


@click.command(name="search")
@click.argument("words", nargs=-1, required=True)
@click.option(
    "-l", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of results."
)
@format_option()
def command(words: tuple[str, ...], limit: int, output: Output) -> None:
    """Find environments that have all WORDS in their name, tags, description or tools."""
    page = with_hub(lambda hub: hub.search(" ".join(words), limit=limit))
    output.show([document(each) for each in page.items], lambda: table(page.items))
