"""``aenv instance``: create, inspect and delete instances, on a platform or on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.inside import process_commands as commands
from aenv.cli.inside.access import find_instance, with_instance
from aenv.cli.inside.file_commands import files
from aenv.cli.instance_table import whose
from aenv.cli.output import Output, columns, note, output_option
from aenv.cli.platform_address import (
    chosen,
    local_past,
    log_options,
    pairs_of,
    platform_options,
    show_log,
    with_all,
    with_api_of,
)
from aenv.errors import NotFound, UsageError

if TYPE_CHECKING:
    from aenv.client.platform_client import ApiClient
    from aenv.schema.instances import EnvInstance
    from aenv.sdk.environment import Environment

T = TypeVar("T")


@click.group(cls=CommandGroup, name="instance")
def command() -> None:
    """Create, inspect and delete instances: on a platform, or on this machine if no platform is set."""


@command.command()
@click.argument("env_name", required=False)
@click.option("-d", "--datasource", default="", help="Data source of the environment.")
@click.option("-t", "--ttl", help="Time to live, like 2h.  [default: from config.json, else 30m]")
@click.option(
    "-e", "--env", "variables", multiple=True, metavar="KEY=VALUE", help="Environment variable; may be repeated."
)
@click.option("-a", "--arg", "arguments", multiple=True, help="Argument; may be repeated.")
@click.option("-l", "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label; may be repeated.")
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Timeout of one request, in seconds.")
@click.option(
    "--startup-timeout", type=float, default=500.0, show_default=True, help="Timeout of the start, in seconds."
)
@click.option("--max-retries", type=int, default=10, show_default=True, help="Number of retries.")
@click.option("--skip-health", is_flag=True, help="Do not wait until the instance is healthy.")
@click.option("--keep-alive", is_flag=True, help="Keep the instance running; by default it is deleted once it works.")
@click.option("--owner", help="Owner, a free text.")
@click.option("--cpu", help="Cores, like 2 or 500m.  [default: from config.json]")
@click.option("--memory", help="Memory limit, like 4Gi.  [default: from config.json]")
@click.option("--storage", help="Limit of files, like 10Gi.  [default: from config.json]")
@click.option("--gpu", type=int, help="Number of GPUs.")
@platform_options
@output_option
def create(
    env_name: str | None,
    datasource: str,
    ttl: str | None,
    variables: tuple[str, ...],
    arguments: tuple[str, ...],
    labels: tuple[str, ...],
    timeout: float,
    startup_timeout: float,
    max_retries: int,
    skip_health: bool,
    keep_alive: bool,
    owner: str | None,
    cpu: str | None,
    memory: str | None,
    storage: str | None,
    gpu: int | None,
    system_url: str | None,
    api_key: str | None,
    output: Output,
) -> None:
    """Create an instance of ENV_NAME, by default of the project in the current directory."""
    env = _environment(
        env_name, system_url, api_key, datasource=datasource, environment_variables=pairs_of("--env", variables),
        arguments=list(arguments), labels=pairs_of("--label", labels), timeout=timeout, startup_timeout=startup_timeout,
        max_retries=max_retries, skip_for_healthy=skip_health, owner=owner, keep_alive=keep_alive,
        cpu=cpu, memory=memory, storage=storage, gpu=gpu, **({"ttl": ttl} if ttl else {}),
    )  # fmt: skip
    said = asyncio.run(_made(env))
    output.show(said, lambda: _facts(said))
    if keep_alive:
        note(f"Still running. Delete it with:  aenv instance delete {said['instance_id']}")
    else:
        note("It worked, and was deleted again; --keep-alive keeps it running.")


@command.command()
@click.argument("env_name")
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Timeout of one request, in seconds.")
@platform_options
@output_option
def info(env_name: str, timeout: float, system_url: str | None, api_key: str | None, output: Output) -> None:
    """Create an instance of ENV_NAME, show what it offers, and delete it."""
    said = asyncio.run(_made(_environment(env_name, system_url, api_key, timeout=timeout)))
    output.show(said, lambda: _facts(said))


@command.command(name="list")
@click.option("-n", "--name", help="Only instances of this environment.")
@click.option("--version", help="Only instances of this version; needs --name.")
@click.option("--owner", help="Only instances of this owner.")
@click.option(
    "-l",
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only instances with this label; may be repeated.",
)
@click.option(
    "--status",
    type=click.Choice(["Pending", "Creating", "Running", "Failed", "Terminated"]),
    help="Only instances with this status; required to see ended ones.",
)
@platform_options
@output_option
def list_command(
    name: str | None,
    version: str | None,
    owner: str | None,
    labels: tuple[str, ...],
    status: str | None,
    system_url: str | None,
    api_key: str | None,
    output: Output,
) -> None:
    """List instances."""
    if version and not name:
        raise UsageError("--version needs --name")
    env = f"{name}@{version}" if version else name
    wanted = pairs_of("--label", labels)

    async def work(api: ApiClient) -> list[EnvInstance]:
        found: list[EnvInstance] = []
        after = None
        while True:
            page = await api.page_env_instances(env, owner=owner, labels=wanted, status=status, limit=1000, after=after)
            found += page.items
            after = page.next
            if after is None:
                return found

    found = [each for part in with_all(system_url, api_key, work) for each in part]
    said = [each.model_dump(exclude_none=True, exclude={"token", "data_url"}) for each in found]
    output.show(said, lambda: _table(found))


@command.command()
@click.argument("id")
@platform_options
@output_option
def get(id: str, system_url: str | None, api_key: str | None, output: Output) -> None:
    """Show one instance, and its events. ID: also the name of an environment that has just one instance."""

    async def work(api: ApiClient) -> dict[str, Any]:
        shown = await find_instance(api, id, ended=True)
        found = shown.model_dump(exclude_none=True, exclude={"token", "data_url"})
        with contextlib.suppress(NotFound):  # of an instance lost with its server only the end is known
            found["events"] = [event.model_dump() for event in await api.get_instance_events(shown.id)]
        return found

    past = local_past(id, system_url, api_key)
    if past is not None:
        said = past.instance.model_dump(exclude_none=True) | {"events": [event.model_dump() for event in past.events]}
    else:
        said = with_api_of(system_url, api_key, work)
    output.show(said, lambda: _shown(said))


@command.command()
@click.argument("id")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@platform_options
@output_option
def delete(id: str, yes: bool, system_url: str | None, api_key: str | None, output: Output) -> None:
    """Delete one instance. ID: also the name of an environment that has just one instance."""

    async def find(api: ApiClient) -> str:
        return (await find_instance(api, id, ended=True)).id

    async def work(api: ApiClient) -> None:
        if not await api.delete_env_instance(found):
            raise NotFound(f"there is no instance {found}", details={"hint": "List them: aenv instance list"})

    found = with_api_of(system_url, api_key, find)
    if not yes:
        click.confirm(f"End instance {found}?", abort=True, err=True)
    with_api_of(system_url, api_key, work)
    output.show({"id": found, "deleted": True}, lambda: f"deleted {found}")


@command.command()
@click.argument("id")
@click.option("-t", "--ttl", default="", help="Time to live from now.  [default: as before]")
@platform_options
@output_option
def renew(id: str, ttl: str, system_url: str | None, api_key: str | None, output: Output) -> None:
    """Renew an instance: its time to live counts from now. ID: also the name of an environment that has just one."""

    async def work(api: ApiClient) -> EnvInstance:
        return await api.renew_env_instance((await find_instance(api, id)).id, ttl)

    found = with_api_of(system_url, api_key, work)
    said = {"id": found.id, "ttl": found.ttl, "expires_at": found.expires_at}
    output.show(said, lambda: f"{found.id} lives until {found.expires_at}")


@command.command()
@click.argument("id")
@log_options
@platform_options
def logs(id: str, tail: int | None, follow: bool, system_url: str | None, api_key: str | None) -> None:
    """Show the output of an instance's tools. ID: also the name of an environment that has just one instance."""

    async def work(api: ApiClient) -> None:
        found = (await find_instance(api, id, ended=True)).id
        await show_log(api.follow_instance_logs(found, tail) if follow else await api.get_instance_logs(found, tail))

    past = local_past(id, system_url, api_key)
    if past is not None:
        from aenv.platform.gateway.log_stream import last_lines

        asyncio.run(show_log(last_lines(past.log, tail)))
    else:
        with_api_of(system_url, api_key, work)


@command.command()
@click.argument("source")
@click.argument("target")
@click.option("--timeout", type=float, default=3600.0, show_default=True, help="Timeout in seconds.")
@platform_options
def cp(source: str, target: str, timeout: float, system_url: str | None, api_key: str | None) -> None:
    """Copy a file or a folder into an instance, or out of it: FILE ID:PATH, or ID:PATH FILE.

    The content of a folder is added to what is at the target.
    """
    there, back = ":" in target, ":" in source
    if there == back:
        raise UsageError("one of the two must be in an instance: write it as ID:/path")
    id, _, path = (target if there else source).partition(":")
    if there and not Path(source).exists():
        raise UsageError(f"{source} does not exist")

    async def work(env: Environment) -> None:
        if there:
            await env.upload(Path(source), path, timeout)
        else:
            await env.download_to(path, Path(target), timeout)

    with_instance(id, system_url, api_key, work)


for each in (
    commands.shell,
    commands.exec,
    commands.processes,
    commands.attach,
    commands.kill,
    commands.forward,
    files,
):
    command.add_command(each)


# --- inside


def _environment(env_name: str | None, system_url: str | None, api_key: str | None, **options: Any) -> Environment:
    from aenv.sdk.environment import Environment

    if env_name is None:
        from aenv.project import manifest

        own = manifest.load(Path()).manifest
        env_name = f"{own.name}@{own.version}"
    url, key = chosen(system_url, api_key)
    return Environment(env_name, aenv_url=url, api_key=key, **options)


async def _made(env: Environment) -> dict[str, Any]:
    async with env:
        found = await env.get_env_info()
        version, digest = env.version, env.digest
    found.pop("usage", None)
    id = found.pop("instance_id")
    return {
        "id": id,
        "instance_id": id,
        "environment": found.pop("name"),
        **({"version": version} if version else {}),
        **({"digest": digest} if digest else {}),
        **found,
    }  # the second name is the earlier one


def _table(found: list[EnvInstance]) -> str:
    if not found:
        return "no instances"
    rows = [("INSTANCE ID", "ENVIRONMENT", "VERSION", "OWNER", "STATUS", "CREATED")]
    for each in found:
        name, version = (each.env.name, each.env.version) if each.env else ("-", "-")
        created = each.created_at.replace("T", " ").rstrip("Z")
        rows.append((each.id, name, version or "-", whose(each.account, each.owner), str(each.status), created))
    return columns(rows, indent="")


def _facts(said: dict[str, Any]) -> str:
    names = {"instance_id": "Instance ID", "environment": "Environment", "version": "Version", "digest": "Digest",
             "status": "Status", "ip": "IP Address", "created_at": "Created At"}  # fmt: skip
    return columns([(title, str(said[name])) for name, title in names.items() if said.get(name)], indent="")


def _shown(said: dict[str, Any]) -> str:
    env = said.get("env") or {}
    rows = [("Instance ID", said["id"]), ("Environment", f"{env.get('name', '-')}@{env.get('version') or '-'}")]
    names = ("status", "reason", "fault", "owner", "ttl", "created_at", "started_at", "ended_at", "expires_at", "ip")
    rows += [(name.replace("_", " ").capitalize(), str(said[name])) for name in names if said.get(name)]
    rows += [("Label", f"{name}={value}") for name, value in (said.get("labels") or {}).items()]
    text = columns(rows, indent="")
    events = [(event["at"], event["type"], event["message"]) for event in said.get("events", ())]
    return f"{text}\n\nEvents:\n{columns(events)}" if events else text
