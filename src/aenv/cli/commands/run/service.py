"""``aenv service``: run environments as services."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.output import Output, columns, note, output_option
from aenv.cli.platform_address import log_options, pairs_of, platform_options, show_log, with_api
from aenv.errors import AEnvError, EnvironmentError, EnvironmentTimeoutError, NotFound, UsageError

if TYPE_CHECKING:
    from aenv.client.platform_client import ApiClient
    from aenv.project.manifest import Manifest
    from aenv.schema.instances import EnvService

_wait_option = click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds to wait for completion; the command fails if it takes longer.",
)


@click.group(cls=CommandGroup, name="service")
def command() -> None:
    """Run environments as services on a platform: replicas behind one URL, with optional storage."""


@command.command()
@click.argument("env_name", required=False)
@click.option(
    "-s", "--service-name", help="Name of the service: lower-case letters, digits and dashes.  [default: generated]"
)
@click.option(
    "-r", "--replicas", type=click.IntRange(min=1), help="Number of replicas.  [default: from config.json, or 1]"
)
@click.option("-p", "--port", type=click.IntRange(1, 65535), help="Port that it listens on, for platforms that ask.")
@click.option(
    "-e", "--env", "variables", multiple=True, metavar="KEY=VALUE", help="Environment variable; may be repeated."
)
@click.option("-l", "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label; may be repeated.")
@click.option("--owner", help="Owner, a free text.")
@click.option("--enable-storage", is_flag=True, help="Give it storage, which outlives it; needs 1 replica.")
@click.option("--storage-name", help="Name of the storage.  [default: from config.json, or the environment's name]")
@click.option("--storage-size", help="Size of the storage, like 10Gi.  [default: from config.json]")
@click.option("--mount-path", help="Mount path of the storage.  [default: from config.json, or /home/admin/data]")
@_wait_option
@platform_options
@output_option
def create(
    env_name: str | None,
    service_name: str | None,
    replicas: int | None,
    port: int | None,
    variables: tuple[str, ...],
    labels: tuple[str, ...],
    owner: str | None,
    enable_storage: bool,
    storage_name: str | None,
    storage_size: str | None,
    mount_path: str | None,
    wait: float,
    system_url: str | None,
    api_key: str | None,
    output: Output,
) -> None:
    """Create a service of ENV_NAME, by default of the project in the current directory.

    Defaults come from config.json in the current directory, if that is the project's own.
    """
    own = _manifest(env_name)
    if own is not None:
        env_name = env_name or f"{own.name}@{own.version}"
    assert env_name is not None
    request = _resources(own)
    block = own.service() if own is not None else None
    request["replicas"] = replicas or (block.replicas if block else 1) or 1
    request["port"] = port or (block.port if block else None)
    request |= {"environment_variables": pairs_of("--env", variables) or None, "owner": owner}
    request["labels"] = pairs_of("--label", labels) or None
    if enable_storage or storage_size or storage_name or (block and block.enable_storage):
        size = storage_size or (block.storage_size if block else None)
        name = storage_name or (block.storage_name if block else env_name.partition("@")[0])
        _check_storage(size or storage_name, request["replicas"])
        path = mount_path or (block.mount_path if block else None)
        request |= {"pvc_name": name, "storage_size": size, "mount_path": path}

    async def work(api: ApiClient) -> EnvService:
        made = await api.create_env_service(env_name, service_name or (block.name if block else None), **request)
        waited = await _waited(api, made, wait)
        return waited.model_copy(update={"notices": made.notices})

    found = with_api(system_url, api_key, work)
    output.show(_said(found), lambda: _facts(found))
    for notice in found.notices or ():
        note(f"Warning: {notice}")
    note(f"Inspect it with:  aenv service get {found.id}")


def _check_storage(size_or_name: str | None, replicas: int) -> None:
    """Raise UsageError for a storage of unknown size, and for more replicas than may write to one."""
    if size_or_name is None:
        raise UsageError("a storage needs a size: --storage-size 10Gi, or deployConfig.service.storageSize")
    if replicas != 1:
        raise UsageError(f"a service with storage has 1 replica, not {replicas}: a storage has one writer")


@command.command(name="list")
@click.option("-n", "--name", help="Only instances of this environment.")
@platform_options
@output_option
def list_command(name: str | None, system_url: str | None, api_key: str | None, output: Output) -> None:
    """List services."""

    async def work(api: ApiClient) -> list[EnvService]:
        return await api.list_env_services(name)

    found = with_api(system_url, api_key, work)
    output.show([_said(each) for each in found], lambda: _table(found))


@command.command()
@click.argument("id")
@platform_options
@output_option
def get(id: str, system_url: str | None, api_key: str | None, output: Output) -> None:
    """Show one service, and its events."""

    async def work(api: ApiClient) -> tuple[EnvService, list[dict[str, Any]]]:
        found = await api.get_env_service(id)
        try:
            events = [event.model_dump() for event in await api.get_service_events(id)]
        except AEnvError:  # a platform without events of services
            events = []
        return found, events

    found, events = with_api(system_url, api_key, work)
    rows = [(event["at"], event["type"], event["message"].partition("\n")[0]) for event in events]
    text = f"\n\nEvents:\n{columns(rows)}" if rows else ""
    output.show({**_said(found), "events": events}, lambda: _facts(found) + text)


@command.command()
@click.argument("id")
@click.option("-r", "--replicas", type=click.IntRange(min=0), help="Number of replicas; 0 stops all of them.")
@click.option("--image", help="Version to run, named by its image: registry/NAME:VERSION.")
@click.option("--version", help="Version to run.")
@click.option(
    "-e", "--env", "variables", multiple=True, metavar="KEY=VALUE", help="Environment variable to set; may be repeated."
)
@click.option("--storage-size", help="New, larger size of the storage, like 20Gi.")
@_wait_option
@platform_options
@output_option
def update(
    id: str,
    replicas: int | None,
    image: str | None,
    version: str | None,
    variables: tuple[str, ...],
    storage_size: str | None,
    wait: float,
    system_url: str | None,
    api_key: str | None,
    output: Output,
) -> None:
    """Update a running service: replicas are replaced one by one, once the new ones are healthy."""
    if replicas is None and not (image or version or variables or storage_size):
        raise UsageError("nothing to change; use --replicas, --image, --version, --env or --storage-size")

    async def work(api: ApiClient) -> EnvService:
        changed = await api.update_env_service(
            id, replicas, image, pairs_of("--env", variables) or None, version=version, storage_size=storage_size
        )
        return await _waited(api, changed, wait)

    found = with_api(system_url, api_key, work)
    output.show(_said(found), lambda: _facts(found))


@command.command()
@click.argument("id")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--delete-storage", is_flag=True, help="Delete its storage too, with all its data.")
@platform_options
@output_option
def delete(
    id: str, yes: bool, delete_storage: bool, system_url: str | None, api_key: str | None, output: Output
) -> None:
    """Delete one service; its storage stays, unless --delete-storage is given."""
    if not yes:
        what = " and its storage, with all that is in it" if delete_storage else ""
        click.confirm(f"End service {id}{what}?", abort=True, err=True)

    async def work(api: ApiClient) -> bool:
        return await api.delete_env_service(id, delete_storage)

    if not with_api(system_url, api_key, work):
        raise NotFound(f"there is no service {id}", details={"hint": "List them: aenv service list"})
    output.show({"id": id, "deleted": True, "storage_deleted": delete_storage}, lambda: f"deleted {id}")


@command.command()
@click.argument("id")
@log_options
@platform_options
def logs(id: str, tail: int | None, follow: bool, system_url: str | None, api_key: str | None) -> None:
    """Show the output of a service's tools; each line begins with the replica's id."""

    async def work(api: ApiClient) -> None:
        await show_log(api.follow_service_logs(id, tail) if follow else await api.get_service_logs(id, tail))

    with_api(system_url, api_key, work)


# --- inside


def _manifest(env_name: str | None) -> Manifest | None:
    """Return the manifest of the current directory, if it is the one of this environment."""
    from aenv.project import manifest

    if env_name is None:
        return manifest.load(Path()).manifest
    if not Path(manifest.FILE_NAME).is_file():
        return None
    own = manifest.load(Path()).manifest
    return own if env_name in (own.name, f"{own.name}@{own.version}") else None


def _resources(own: Manifest | None) -> dict[str, Any]:
    if own is None:
        return {}
    wanted = own.resources()
    amounts = {"cpu": wanted.cpu, "memory": wanted.memory, "ephemeral_storage": wanted.ephemeral_storage}
    return {f"{name}_{end}": getattr(amount, end) for name, amount in amounts.items() for end in ("request", "limit")}


async def _waited(api: ApiClient, service: EnvService, seconds: float) -> EnvService:
    """Wait until the service has settled."""
    until = time.monotonic() + seconds
    asked = service.revision
    while seconds:
        done = service.status == "Running" and service.available_replicas == service.replicas
        if service.status == "Failed" or (done and service.revision != asked):
            raise EnvironmentError(f"service {service.id} did not reach the requested state: {service.reason}")
        if done:
            break
        left = until - time.monotonic()
        if left <= 0:
            raise EnvironmentTimeoutError(
                f"service {service.id} is {service.status} after {seconds:g} s: {service.reason or 'it is under way'}",
                details={"budget": "wait", "seconds": seconds},
            )
        service = await api.get_env_service(service.id, wait=min(left, 10.0))
    return service


def _said(service: EnvService) -> dict[str, Any]:
    return service.model_dump(exclude_none=True)


def _env(service: EnvService) -> str:
    return f"{service.env.name}@{service.env.version}" if service.env else "-"


def _table(found: list[EnvService]) -> str:
    if not found:
        return "no services"
    rows = [("SERVICE ID", "ENVIRONMENT", "OWNER", "STATUS", "REPLICAS", "STORAGE NAME", "CREATED")]
    for each in found:
        created = each.created_at.replace("T", " ").rstrip("Z")
        count = f"{each.available_replicas}/{each.replicas}"
        rows.append((each.id, _env(each), each.owner or "-", str(each.status), count, each.pvc_name or "-", created))
    return columns(rows, indent="")


def _facts(service: EnvService) -> str:
    count = f"{service.available_replicas}/{service.replicas}"
    rows = [("Service ID", service.id), ("Environment", _env(service)), ("Status", str(service.status))]
    rows += [("Reason", service.reason.partition("\n")[0])] if service.reason else []
    rows += [("Service URL", service.service_url or "-"), ("Replicas", count)]
    if service.pvc_name:
        rows += [("Storage Name", service.pvc_name), ("Storage", f"{service.storage_size} at {service.mount_path}")]
    rows += [("Restarts", str(service.restarts))] if service.restarts else []
    rows += [("Instance", name) for name in service.instances or ()]
    rows += [("Label", f"{name}={value}") for name, value in (service.labels or {}).items()]
    return columns([*rows, ("Created", service.created_at)], indent="")
