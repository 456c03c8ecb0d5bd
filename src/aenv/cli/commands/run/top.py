"""``aenv top``: watch instances and their resource usage."""

from __future__ import annotations

import asyncio
import sys

import click

from aenv.cli.instance_table import KEYS, SORTS, TableScreen, page
from aenv.cli.output import Output, output_option
from aenv.cli.platform_address import platform_options, running
from aenv.errors import ConfigError


@click.command(name="top")
@click.option("-n", "--name", help="Only instances of this environment.")
@click.option("--owner", help="Only instances of this owner.")
@click.option(
    "--sort", type=click.Choice(SORTS), default="cpu", show_default=True, help="Column to sort by, highest first."
)
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between refreshes."
)
@click.option("--once", is_flag=True, help="Sample once and print one page; the default without a terminal.")
@platform_options
@output_option
def command(
    name: str | None,
    owner: str | None,
    sort: str,
    every: float,
    once: bool,
    system_url: str | None,
    api_key: str | None,
    output: Output,
) -> None:
    """Watch instances: their CPU, memory and calls.

    q ends it; c, m, n, r and a sort them by CPU, memory, calls, calls in a second and age.
    """
    found = running(system_url, api_key)
    if found is None:
        hint = {"hint": "Name a platform with --system-url, or start an instance here first."}
        raise ConfigError("no platform is set, and none runs on this machine", hint)
    live = not once and output is Output.TABLE and sys.stdout.isatty()
    asyncio.run(_watch(*found, name, owner, sort, every, output, live))


async def _watch(
    url: str, key: str | None, name: str | None, owner: str | None, by: str, every: float, output: Output, live: bool
) -> None:
    from aenv.cli.usage_sampling import Sampler
    from aenv.client.platform_client import ApiClient

    async with ApiClient(url, api_key=key) as api:
        sampler = Sampler(api)
        rows = await sampler.sample(name, owner)
        if not live:
            await asyncio.sleep(every)
            rows = await sampler.sample(name, owner)
            output.show([row.facts() for row in rows], lambda: page(rows, by, url))
            return
        loop = asyncio.get_running_loop()
        with TableScreen.opened() as screen:
            while True:
                screen.draw(page(rows, by, url, screen.room))
                pressed = await loop.run_in_executor(None, screen.key, every)
                if pressed == "q":
                    return
                by = KEYS.get(pressed, by)
                if not pressed:
                    rows = await sampler.sample(name, owner)
