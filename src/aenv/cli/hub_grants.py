"""The commands of ``aenv hub`` that say who may do what: owners, grants, namespaces, storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aenv.cli.hub_options import with_hub
from aenv.cli.output import Output, columns, output_option
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.schema.envhub import Access, Grants, StorageUsage

ACCESS = click.Choice(["read", "write"])
_user = click.option("--user", required=True, help="The user of a token; '*' stands for everybody who has one.")
_access = click.option("--access", type=ACCESS, default="read", show_default=True)


@click.command()
@click.argument("name")
@_user
@_access
@output_option
def grant(name: str, user: str, access: Access, output: Output) -> None:
    """Let a user read the environment NAME, or write to it."""
    _show(with_hub(lambda hub: hub.grant(name, user, access)), output)


@click.command()
@click.argument("name")
@click.option("--user", required=True, help="Whose grant to take away.")
@output_option
def revoke(name: str, user: str, output: Output) -> None:
    """Take a user's grant on the environment NAME away."""
    _show(with_hub(lambda hub: hub.revoke(name, user)), output)


@click.command()
@click.argument("name")
@output_option
def grants(name: str, output: Output) -> None:
    """Show the owner of the environment NAME and who may do what with it."""
    _show(with_hub(lambda hub: hub.grants(name)), output)


@click.command()
@click.argument("name")
@click.option("--user", required=True, help="The new owner; '' stands for the hub's administrators.")
@output_option
def transfer(name: str, user: str, output: Output) -> None:
    """Give the environment NAME to another owner."""
    _show(with_hub(lambda hub: hub.transfer(name, user)), output)


@click.command()
@click.argument("name")
@click.option("--public/--private", required=True, help="Whether everyone who reaches the hub may read it.")
@output_option
def visibility(name: str, public: bool, output: Output) -> None:
    """Make the environment NAME public or private."""

    async def work(hub: Any) -> Grants:
        await hub.set_public(name, public)
        found: Grants = await hub.grants(name)
        return found

    _show(with_hub(work), output)


@click.group()
def namespace() -> None:
    """Names that are reserved for a user: NAME, and every name that starts with NAME and a dash."""


@namespace.command(name="list")
@output_option
def namespace_list(output: Output) -> None:
    """Show the namespaces that you have a part in; an administrator sees all."""
    found = with_hub(lambda hub: hub.namespaces())
    rows = [("NAME", "OWNER", "GRANTS")]
    rows += [(each.name, each.owner, _written(each)) for each in found]
    output.show(
        [each.model_dump(exclude={"public"}) for each in found],
        lambda: columns(rows, indent="") if found else "no namespaces",
    )


@namespace.command(name="reserve")
@click.argument("name")
@click.option("--user", required=True, help="The user that the names are reserved for.")
@output_option
def namespace_reserve(name: str, user: str, output: Output) -> None:
    """Reserve a namespace for a user; for administrators."""
    _show(with_hub(lambda hub: hub.reserve(name, user)), output)


@namespace.command(name="release")
@click.argument("name")
def namespace_release(name: str) -> None:
    """Reserve a namespace no more; for administrators. The environments in it keep their owner."""
    with_hub(lambda hub: hub.unreserve(name))
    click.echo(f"{name} is not reserved any more")


@namespace.command(name="grant")
@click.argument("name")
@_user
@_access
@output_option
def namespace_grant(name: str, user: str, access: Access, output: Output) -> None:
    """Let a user read every environment of a namespace, or write to it and add environments."""
    _show(with_hub(lambda hub: hub.grant_namespace(name, user, access)), output)


@namespace.command(name="revoke")
@click.argument("name")
@click.option("--user", required=True, help="Whose grant to take away.")
@output_option
def namespace_revoke(name: str, user: str, output: Output) -> None:
    """Take a user's grant on a namespace away."""
    _show(with_hub(lambda hub: hub.revoke_namespace(name, user)), output)


@click.group()
def quota() -> None:
    """How much storage a user's environments may occupy."""


@quota.command(name="show")
@click.option("--user", default="", help="Whose; for administrators.  [default: your own]")
@output_option
def quota_show(user: str, output: Output) -> None:
    """Show how much is occupied, and how much may be."""
    _show_usage(with_hub(lambda hub: hub.usage(user)), output)


@quota.command(name="set")
@click.option("--user", required=True, help="Whose.")
@click.option("--limit", required=True, help="Like 20Gi; 0: no limit, 'default': as the hub's settings say.")
@output_option
def quota_set(user: str, limit: str, output: Output) -> None:
    """Set how much a user's environments may occupy; for administrators."""
    size = None if limit == "default" else parse_size(limit)
    _show_usage(with_hub(lambda hub: hub.set_quota(user, size)), output)


def parse_size(text: str) -> int:
    """Return a size as it is written, in bytes; 0 stands for no limit.

    Raises:
        UsageError: it is not a size.
    """
    from aenv.project import quantities

    try:
        return 0 if text == "0" else quantities.size(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _written(of: Grants) -> str:
    return ", ".join(f"{user}: {access}" for user, access in sorted(of.grants.items())) or "-"


def _show(of: Grants, output: Output) -> None:
    rows = [
        ("Name", of.name),
        ("Owner", of.owner or "the hub's administrators"),
        ("Visibility", "public" if of.public else "private"),
        ("Grants", _written(of)),
    ]
    output.show(of.model_dump(), lambda: columns(rows, indent=""))


def _show_usage(usage: StorageUsage, output: Output) -> None:
    limit = f"{usage.limit / 2**30:.2f} GiB" if usage.limit else "no limit"
    rows = [
        ("User", usage.user),
        ("Used", f"{usage.used / 2**30:.2f} GiB"),
        ("Uploading", f"{usage.uploading / 2**30:.2f} GiB"),
        ("Limit", limit),
    ]
    output.show(usage.model_dump(), lambda: columns(rows, indent=""))
