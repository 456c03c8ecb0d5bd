"""``aenv hub``: serve and maintain a hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.hub import hub_grants, hub_versions
from aenv.cli.output import Output, columns, note, output_option
from aenv.errors import UsageError
from aenv.schema.paths import HUB_PORT

if TYPE_CHECKING:
    from aenv.hub.catalog import Catalog
    from aenv.hub.web.serve import HubReady

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def _place_options(command: F) -> F:
    store = click.option(
        "--store",
        envvar="AENV_HUB_STORE",
        help="Store of the records: a file, or redis://HOST, rediss://HOST.  [default: hub/hub.db in the data folder]",
    )
    blobs = click.option(
        "--blobs",
        envvar="AENV_HUB_BLOBS",
        help="Store of the files: a folder, or s3://BUCKET/PREFIX.  [default: beside the store]",
    )
    return store(blobs(command))


@click.group(cls=CommandGroup, name="hub")
def command() -> None:
    """Serve and maintain a hub.

    Most of these commands work on the hub's own store, on the machine that can reach it. Those about owners, grants,
    namespaces and storage ask the hub that your settings name, as you.
    """


for _part in (
    hub_grants.grant,
    hub_grants.revoke,
    hub_grants.grants,
    hub_grants.transfer,
    hub_grants.visibility,
    hub_grants.namespace,
    hub_grants.quota,
    hub_versions.delete,
):
    command.add_command(_part)


@command.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65535), default=HUB_PORT, show_default=True, help="Port; 0 picks a free one."
)
@click.option("--uds", help="Unix socket to listen on, instead of host and port.")
@click.option(
    "--auth/--no-auth",
    default=None,
    help="Require a token from callers.  [default: if other machines can reach the server]",
)
@click.option(
    "--quota",
    default="50Gi",
    show_default=True,
    envvar="AENV_HUB_QUOTA",
    help="Storage quota of a user, unless an administrator has set another; 0 means no limit.",
)
@_place_options
@output_option
def serve(
    host: str,
    port: int,
    uds: str | None,
    auth: bool | None,
    quota: str,
    store: str | None,
    blobs: str | None,
    output: Output,
) -> int:
    """Serve a hub until Ctrl-C."""
    import logging
    import sys

    from aenv.hub.open_hub import HubLocation
    from aenv.hub.web.serve import HubOptions, serve
    from aenv.tracing.logging import level_from_environment, setup_logging

    setup_logging(logging.StreamHandler(sys.stderr), level_from_environment())
    options = HubOptions(HubLocation.of(store, blobs), host, port, uds, auth, hub_grants.parse_size(quota))

    def tell(ready: HubReady) -> None:
        if ready.first_token:
            note(f"The first token of this hub, for its administrator; it is not shown again:\n  {ready.first_token}")
        facts = {"url": ready.url, "auth": ready.auth}
        output.show(facts, lambda: _told(ready))
        sys.stdout.flush()

    return serve(options, tell)


def _told(ready: HubReady) -> str:
    who = "with a token" if ready.auth else "everyone who can reach it"
    lines = (f"Use it:   export AENV_HUB_URL={ready.url}", f"For:      {who}", "Stop:     Ctrl-C")
    return "\n".join((f"the hub is ready at {ready.url}", "", *lines))


# --- tokens


@command.group()
def token() -> None:
    """Create, list and revoke tokens."""


@token.command(name="create")
@click.option("--user", default="", help="User of the token.")
@click.option("--scope", type=click.Choice(["read", "push", "admin"]), default="read", show_default=True)
@click.option(
    "--namespace",
    multiple=True,
    help="Namespace that it is valid for: this name, and names that begin with it and a dash; may be repeated.",
)
@click.option("--expires", help="Lifetime, like 720h.  [default: does not expire]")
@_place_options
@output_option
def token_create(
    user: str,
    scope: Any,
    namespace: tuple[str, ...],
    expires: str | None,
    store: str | None,
    blobs: str | None,
    output: Output,
) -> None:
    """Create a token. It is shown once."""
    from aenv.hub.access.hub_tokens import HubTokens
    from aenv.hub.web.bodies import TokenResponse

    until = None if expires is None else time.time() + _seconds(expires)
    spaces = [_namespace(each) for each in namespace] or ["*"]

    async def work(catalog: Catalog) -> tuple[dict[str, Any], str]:
        made, text = await HubTokens(catalog.store).create(user=user, scope=scope, namespaces=spaces, expires_at=until)
        return TokenResponse.of(made, text).model_dump(), text

    said, text = _with_catalog(store, blobs, work)
    output.show(said, lambda: text)
    if output is Output.TABLE:
        note(f"A token with the scope {scope} for {', '.join(spaces)}; it is not shown again. Use it:")
        note("  aenv config set hub_config.api_key TOKEN")


@token.command(name="list")
@_place_options
@output_option
def token_list(store: str | None, blobs: str | None, output: Output) -> None:
    """List the tokens, without their secrets."""
    from aenv.hub.access.hub_tokens import HubTokens
    from aenv.hub.web.bodies import TokenResponse

    async def work(catalog: Catalog) -> list[dict[str, Any]]:
        found = await HubTokens(catalog.store).all()
        return [TokenResponse.of(each).model_dump(exclude={"token"}) for each in found]

    said = _with_catalog(store, blobs, work)
    output.show(said, lambda: _token_table(said))


@token.command(name="revoke")
@click.argument("id")
@_place_options
@output_option
def token_revoke(id: str, store: str | None, blobs: str | None, output: Output) -> None:
    """Revoke a token, with immediate effect."""
    from aenv.hub.access.hub_tokens import HubTokens
    from aenv.hub.web.bodies import TokenResponse

    async def work(catalog: Catalog) -> dict[str, Any]:
        return TokenResponse.of(await HubTokens(catalog.store).revoke(id)).model_dump(exclude={"token"})

    said = _with_catalog(store, blobs, work)
    output.show(said, lambda: f"revoked {id}")


def _token_table(tokens: list[dict[str, Any]]) -> str:
    if not tokens:
        return "no tokens"
    now = time.time()
    rows = [("ID", "USER", "SCOPE", "NAMESPACES", "STATE", "CREATED")]
    for each in tokens:
        expires = each["expires_at"]
        if each["revoked_at"] is not None:
            state = "revoked"
        elif expires is not None:
            state = "expired" if expires <= now else f"until {time.strftime('%Y-%m-%d %H:%M', time.gmtime(expires))}"
        else:
            state = "valid"
        spaces = ",".join(each["namespaces"])
        rows.append((each["id"], each["user"], each["scope"], spaces, state, each["created_at"][:16]))
    return columns(rows, indent="")


# --- webhooks


@command.group()
def webhook() -> None:
    """Add, list and remove webhooks."""


@webhook.command(name="add")
@click.argument("url")
@click.option(
    "--event",
    multiple=True,
    type=click.Choice(["push", "release", "deprecate", "yank", "delete"]),
    help="Event to send; may be repeated.  [default: push]",
)
@click.option(
    "--namespace", multiple=True, help="Only environments of this namespace; may be repeated.  [default: all]"
)
@_place_options
@output_option
def webhook_add(
    url: str,
    event: tuple[Any, ...],
    namespace: tuple[str, ...],
    store: str | None,
    blobs: str | None,
    output: Output,
) -> None:
    """Send events to URL from now on. The signing secret is shown once."""

    async def work(catalog: Catalog) -> dict[str, Any]:
        spaces = [_namespace(each) for each in namespace] or ["*"]
        hook = await catalog.webhooks.add(url, list(event) or ["push"], spaces, catalog.now())
        return hook.model_dump()

    said = _with_catalog(store, blobs, work)
    output.show(said, lambda: said["secret"])
    if output is Output.TABLE:
        note(f"Webhook {said['id']} signs with this secret; it is not shown again.")


@webhook.command(name="list")
@_place_options
@output_option
def webhook_list(store: str | None, blobs: str | None, output: Output) -> None:
    """List the webhooks."""

    async def work(catalog: Catalog) -> list[dict[str, Any]]:
        return [hook.model_dump(exclude={"secret"}) for hook in await catalog.webhooks.hooks()]

    said = _with_catalog(store, blobs, work)
    rows = [("ID", "EVENTS", "NAMESPACES", "URL")]
    rows += [(each["id"], ",".join(each["events"]), ",".join(each["namespaces"]), each["url"]) for each in said]
    output.show(said, lambda: columns(rows, indent="") if said else "no webhooks")


@webhook.command(name="remove")
@click.argument("id")
@_place_options
def webhook_remove(id: str, store: str | None, blobs: str | None) -> None:
    """Remove a webhook."""

    async def work(catalog: Catalog) -> None:
        await catalog.webhooks.remove(id)

    _with_catalog(store, blobs, work)
    click.echo(f"removed {id}")


# --- upkeep


@command.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--from-blobs", help="Store of the files.  [default: beside a store that is a file]")
@click.option("--to-blobs", help="Store to copy the files to.  [default: beside a store that is a file]")
@click.option("--older", is_flag=True, help="FROM is the Redis of an AEnvironment 0.1 hub, which had no files.")
@output_option
def migrate(
    source: str, target: str, from_blobs: str | None, to_blobs: str | None, older: bool, output: Output
) -> None:
    """Copy a hub from one store to another: a file, redis://HOST or rediss://HOST.

    Stop pushing to it meanwhile. It can be run again.
    """
    if older:
        _adopt(source, target, to_blobs, output)
        return
    from aenv.hub.open_hub import HubLocation
    from aenv.hub.upkeep import MigrationResult, migrate
    from aenv.storage.open_url import open_blobs, open_store

    old, new = HubLocation.of(source, from_blobs), HubLocation.of(target, to_blobs)
    if old.store == new.store:
        raise UsageError("FROM and TO are the same store")

    async def work() -> MigrationResult:
        stores, places = (open_store(old.store), open_store(new.store)), (open_blobs(old.blobs), open_blobs(new.blobs))
        try:
            return await migrate(stores[0], places[0], stores[1], places[1], lambda count: None)
        finally:
            for each in (*stores, *places):
                await each.close()

    _show_moved(asyncio.run(work()), output, "copied")


def _adopt(source: str, target: str, blobs: str | None, output: Output) -> None:
    from dataclasses import asdict

    from aenv.hub.legacy_import import ImportResult, import_legacy
    from aenv.storage.redis import legacy_records

    async def work(catalog: Catalog) -> ImportResult:
        return await import_legacy(catalog, legacy_records(source))

    done = _with_catalog(target, blobs, work)
    output.show(
        asdict(done), lambda: f"{done.records} versions taken over, {done.there} there already, {done.refused} refused"
    )


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_place_options
@output_option
def backup(file: Path, store: str | None, blobs: str | None, output: Output) -> None:
    """Back up the hub to FILE, a tar archive. The hub may be in use."""
    from aenv.hub import upkeep

    async def work(catalog: Catalog) -> upkeep.MigrationResult:
        return await upkeep.backup(catalog.store, catalog.blobs, file, lambda count: None)

    _show_moved(_with_catalog(store, blobs, work), output, "written")


@command.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--force", is_flag=True, help="Restore into a hub that has versions already.")
@_place_options
@output_option
def restore(file: Path, force: bool, store: str | None, blobs: str | None, output: Output) -> None:
    """Restore a hub from FILE."""
    from aenv.hub import upkeep

    async def work(catalog: Catalog) -> upkeep.MigrationResult:
        return await upkeep.restore(catalog.store, catalog.blobs, file, lambda count: None, force=force)

    _show_moved(_with_catalog(store, blobs, work), output, "restored")


@command.command()
@click.option("--grace", default="24h", show_default=True, help="Keep files uploaded within this time.")
@click.option("--dry-run", is_flag=True, help="Only count what would be removed.")
@_place_options
@output_option
def gc(grace: str, dry_run: bool, store: str | None, blobs: str | None, output: Output) -> None:
    """Remove files that no version refers to. The hub may be in use."""
    from dataclasses import asdict

    from aenv.hub import upkeep

    seconds = _seconds(grace)

    async def work(catalog: Catalog) -> upkeep.CollectionResult:
        return await upkeep.collect(catalog.store, catalog.blobs, grace=seconds, dry_run=dry_run)

    done = _with_catalog(store, blobs, work)
    verb = "would be removed" if dry_run else "removed"
    output.show(asdict(done), lambda: f"{done.removed} blobs {verb}, {done.kept} needed, {done.young} too new to tell")


def _show_moved(moved: Any, output: Output, verb: str) -> None:
    from dataclasses import asdict

    output.show(
        asdict(moved), lambda: f"{verb}: {moved.records} records, {moved.blobs} blobs, {moved.bytes / 1e6:.1f} MB"
    )
    if moved.missing:
        note(f"{moved.missing} blobs are missing: the versions that need them cannot be pulled")


def _with_catalog(store: str | None, blobs: str | None, work: Callable[[Catalog], Awaitable[T]]) -> T:
    from aenv.hub.open_hub import HubLocation, open_catalog

    async def main() -> T:
        catalog = open_catalog(HubLocation.of(store, blobs))
        try:
            return await work(catalog)
        finally:
            await catalog.store.close()
            await catalog.blobs.close()

    return asyncio.run(main())


def _seconds(text: str) -> float:
    from aenv.schema import duration

    try:
        return duration.parse(text).seconds
    except ValueError as error:
        raise UsageError(str(error)) from None


def _namespace(text: str) -> str:
    from aenv.schema.names import check_name

    try:
        return text if text == "*" else check_name(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
