"""Commands of ``aenv hub`` for access: owners, grants, namespaces, storage quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.hub.hub_options import with_hub
from aenv.cli.output import Output, columns, output_option
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.schema.envhub import Access, Grants, StorageUsage

ACCESS = click.Choice(["read", "write"])
_user = click.option("--user", required=True, help="User of a token; '*' means every user with a token.")
_access = click.option("--access", type=ACCESS, default="read", show_default=True)


@click.command()
@click.argument("name")
@_user
@_access
@output_option
def grant(name: str, user: str, access: Access, output: Output) -> None:
    """Grant a user read or write access to the environment NAME."""
    _show(with_hub(lambda hub: hub.grant(name, user, access)), output)


@click.command()
@click.argument("name")
@click.option("--user", required=True, help="User whose grant to revoke.")
@output_option
def revoke(name: str, user: str, output: Output) -> None:
    """Revoke a user's grant on the environment NAME."""
    _show(with_hub(lambda hub: hub.revoke(name, user)), output)


@click.command()
@click.argument("name")
@output_option
def grants(name: str, output: Output) -> None:
    """Show the owner of the environment NAME, and the grants on it."""
    _show(with_hub(lambda hub: hub.grants(name)), output)


@click.command()
@click.argument("name")
@click.option("--user", required=True, help="New owner; '' means the hub's administrators.")
@output_option
def transfer(name: str, user: str, output: Output) -> None:
    """Transfer the environment NAME to another owner."""
    _show(with_hub(lambda hub: hub.transfer(name, user)), output)


@click.command()
@click.argument("name")
@click.option("--public/--private", required=True, help="Let everyone who reaches the hub read it, or not.")
@output_option
def visibility(name: str, public: bool, output: Output) -> None:
    """Make the environment NAME public or private."""

    async def work(hub: Any) -> Grants:
        await hub.set_public(name, public)
        found: Grants = await hub.grants(name)
        return found

    _show(with_hub(work), output)


@click.group(cls=CommandGroup)
def namespace() -> None:
    """Manage namespaces: NAME, and every name that begins with NAME and a dash, reserved for a user."""


@namespace.command(name="list")
@output_option
def namespace_list(output: Output) -> None:
    """List the namespaces that you have access to; administrators see all."""
    found = with_hub(lambda hub: hub.namespaces())
    rows = [("NAME", "OWNER", "GRANTS")]
    rows += [(each.name, each.owner, _written(each.grants)) for each in found]
    output.show(
        [each.model_dump(exclude={"public"}) for each in found],
        lambda: columns(rows, indent="") if found else "no namespaces",
    )


@namespace.command(name="reserve")
@click.argument("name")
@click.option("--user", required=True, help="User that the names are reserved for.")
@output_option
def namespace_reserve(name: str, user: str, output: Output) -> None:
    """Reserve a namespace for a user; for administrators."""
    _show(with_hub(lambda hub: hub.reserve(name, user)), output)


@namespace.command(name="release")
@click.argument("name")
def namespace_release(name: str) -> None:
    """Release a namespace; for administrators. The environments in it keep their owner."""
    with_hub(lambda hub: hub.unreserve(name))
    click.echo(f"{name} is no longer reserved")


@namespace.command(name="grant")
@click.argument("name")
@_user
@_access
@output_option
def namespace_grant(name: str, user: str, access: Access, output: Output) -> None:
    """Grant a user read or write access to every environment of a namespace; write includes adding new ones."""
    _show(with_hub(lambda hub: hub.grant_namespace(name, user, access)), output)


@namespace.command(name="revoke")
@click.argument("name")
@click.option("--user", required=True, help="User whose grant to revoke.")
@output_option
def namespace_revoke(name: str, user: str, output: Output) -> None:
    """Revoke a user's grant on a namespace."""
    _show(with_hub(lambda hub: hub.revoke_namespace(name, user)), output)


@click.group(cls=CommandGroup)
def quota() -> None:
    """Show and set storage quotas."""


@quota.command(name="show")
@click.option("--user", default="", help="User; for administrators.  [default: yourself]")
@output_option
def quota_show(user: str, output: Output) -> None:
    """Show the storage in use, and the limit."""
    _show_usage(with_hub(lambda hub: hub.usage(user)), output)


@quota.command(name="set")
@click.option("--user", required=True, help="User of the quota.")
@click.option("--limit", required=True, help="Limit, like 20Gi; 0 means no limit, 'default' the hub's setting.")
@output_option
def quota_set(user: str, limit: str, output: Output) -> None:
    """Set a user's storage quota; for administrators."""
    size = None if limit == "default" else parse_size(limit)
    _show_usage(with_hub(lambda hub: hub.set_quota(user, size)), output)


def parse_size(text: str) -> int:
    """Parse a size into bytes; 0 means no limit.

    Raises:
        UsageError: it is not a size.
    """
    from aenv.schema import quantities

    try:
        return 0 if text == "0" else quantities.size(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _written(grants: dict[str, Access]) -> str:
    return ", ".join(f"{user}: {access}" for user, access in sorted(grants.items())) or "-"


def _show(of: Grants, output: Output) -> None:
    rows = [
        ("Name", of.name),
        ("Owner", of.owner or "the hub's administrators"),
        ("Visibility", "public" if of.public else "private"),
        ("Grants", _written(of.grants)),
    ]
    if of.namespace:
        rows.append(("Namespace", f"{of.namespace} of {of.namespace_owner}; {_written(of.namespace_grants)}"))
    output.show(of.model_dump(), lambda: columns(rows, indent=""))


def _show_usage(usage: StorageUsage, output: Output) -> None:
    limit = _binary_size(usage.limit) if usage.limit else "no limit"
    rows = [
        ("User", usage.user),
        ("Used", _binary_size(usage.used)),
        ("Uploading", _binary_size(usage.uploading)),
        ("Limit", limit),
    ]
    output.show(usage.model_dump(), lambda: columns(rows, indent=""))


def _binary_size(count: int) -> str:
    """Format a number of bytes in the units that quotas are written in."""
    for unit, step in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= step:
            return f"{count / step:.2f} {unit}"
    return f"{count} bytes"
