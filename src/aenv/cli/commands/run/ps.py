"""``aenv ps``: show running instances and their resource usage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from aenv.cli.output import Output, columns, output_option
from aenv.cli.platform_address import chosen, local_urls, platform_options

if TYPE_CHECKING:
    from aenv.cli.usage_sampling import Row


@click.command(name="ps")
@click.option("-n", "--name", help="Only instances of this environment.")
@click.option("--owner", help="Only instances of this owner.")
@platform_options
@output_option
def command(name: str | None, owner: str | None, system_url: str | None, api_key: str | None, output: Output) -> None:
    """Show running instances and what they use.

    Lists the instances of the platform that is set, else those of this machine.
    """
    url, key = chosen(system_url, api_key)
    urls = [url] if url is not None else local_urls()
    rows = [row for each in urls for row in asyncio.run(_rows_of(each, key, name, owner))]
    output.show([row.facts() for row in rows], lambda: _table(rows))


async def _rows_of(url: str, key: str | None, name: str | None, owner: str | None) -> list[Row]:
    from aenv.cli.usage_sampling import Sampler
    from aenv.client.platform_client import ApiClient

    async with ApiClient(url, api_key=key) as api:
        return await Sampler(api).sample(name, owner)


def _table(rows: list[Row]) -> str:
    from aenv.cli.instance_table import HEAD, cells

    return columns([HEAD, *map(cells, rows)], indent="") if rows else "no instances"
