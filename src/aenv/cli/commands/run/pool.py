"""``aenv pool``: keep instances of an environment ready before they are needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.output import Output, columns, note, output_option
from aenv.cli.platform_address import chosen, pairs_of, platform_options, with_all, with_api_of

if TYPE_CHECKING:
    from aenv.client.platform_client import ApiClient
    from aenv.schema.instances import EnvPool


@click.group(cls=CommandGroup, name="pool")
def command() -> None:
    """Keep instances of an environment ready, so that the next creates take no time."""


@command.command()
@click.argument("env_name")
@click.option("--size", type=click.IntRange(1, 1000), required=True, help="Number of instances to keep ready.")
@click.option(
    "-e", "--env", "variables", multiple=True, metavar="KEY=VALUE", help="Environment variable; may be repeated."
)
@click.option("-d", "--datasource", default="", help="Data source of the environment.")
@platform_options
@output_option
def create(
    env_name: str,
    size: int,
    variables: tuple[str, ...],
    datasource: str,
    system_url: str | None,
    api_key: str | None,
    output: Output,
) -> None:
    """Keep --size instances of ENV_NAME ready, for creates with the same variables and datasource."""
    from aenv.sdk.environment import Environment

    url, key = chosen(system_url, api_key)
    env = Environment(
        env_name, aenv_url=url, api_key=key, datasource=datasource, environment_variables=pairs_of("--env", variables)
    )
    made = asyncio.run(env.create_pool(size))
    output.show(made.model_dump(), lambda: _table([made]))
    note(f"End it with:  aenv pool delete {made.name}")


@command.command(name="list")
@platform_options
@output_option
def list_command(system_url: str | None, api_key: str | None, output: Output) -> None:
    """List the pools, and how many instances of each are ready."""

    async def work(api: ApiClient) -> list[EnvPool]:
        return await api.list_env_pools()

    found = [each for part in with_all(system_url, api_key, work) for each in part]
    output.show([each.model_dump() for each in found], lambda: _table(found) if found else "there are none")


@command.command()
@click.argument("name")
@platform_options
@output_option
def delete(name: str, system_url: str | None, api_key: str | None, output: Output) -> None:
    """End the pool of an environment: NAME or NAME@VERSION. Instances in use stay."""

    async def work(api: ApiClient) -> None:
        await api.delete_env_pool(name)

    with_api_of(system_url, api_key, work)
    output.show({"name": name, "deleted": True}, lambda: f"deleted the pool of {name}")


def _table(pools: list[EnvPool]) -> str:
    rows = [(each.name, str(each.size), str(each.ready), each.owner) for each in pools]
    return columns([("ENVIRONMENT", "SIZE", "READY", "OWNER"), *rows], indent="")
