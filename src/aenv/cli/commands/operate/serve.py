"""``aenv serve``: the platform as a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aenv.cli.output import Output, columns, note, output_option
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.platform.access.platform_tokens import PlatformTokens
    from aenv.platform.operations.serve import PlatformReady

T = TypeVar("T")

_store_option = click.option(
    "--store",
    envvar="AENV_SERVE_STORE",
    help="Where tokens and records are: a file, or redis://HOST.  [default: platform/platform.db in the data folder]",
)


@click.group(name="serve", invoke_without_command=True)
@click.option("--local", is_flag=True, help="Serve this user on this machine, on a unix socket.")
@click.option("--key", hidden=True, help="With --local: which platform of this user it is.")
@click.option(
    "--linger",
    type=float,
    default=600.0,
    show_default=True,
    envvar="AENV_LOCAL_LINGER",
    help="With --local: seconds to stay after the last client has gone.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="AENV_SERVE_CONFIG",
    help="A TOML file with these settings, under their names here; what is said here wins.",
)
@click.option("--check", is_flag=True, help="Only say whether it could be served like this, and what is wrong.")
@click.option("--host", envvar="AENV_SERVE_HOST", help="The address to listen on.  [default: 127.0.0.1]")
@click.option(
    "-p", "--port", type=int, envvar="AENV_SERVE_PORT", help="For the control plane; 0: a free one.  [default: 8080]"
)
@click.option(
    "--data-port",
    type=int,
    envvar="AENV_SERVE_DATA_PORT",
    help="For the data plane; 0: a free one.  [default: 8081]",
)
@click.option("--one-port", is_flag=True, default=None, help="Have both planes on --port alone.")
@click.option("--prefix", envvar="AENV_SERVE_PREFIX", help="A path before all paths, as a proxy in front leaves it.")
@click.option("--tls-cert", envvar="AENV_SERVE_TLS_CERT", help="Serve with TLS: the file of the certificate, in PEM.")
@click.option("--tls-key", envvar="AENV_SERVE_TLS_KEY", help="The file of the certificate's key.")
@click.option(
    "--public-url",
    envvar="AENV_SERVE_PUBLIC_URL",
    help="Where users reach the platform, for URLs that it gives out.  [default: where they asked for one]",
)
@click.option(
    "--auth/--no-auth",
    default=None,
    help="Whether callers need a token.  [default: where other machines can reach it]",
)
@_store_option
@click.option(
    "--advertise",
    envvar="AENV_SERVE_ADVERTISE",
    help="The URL at which other servers on the same Redis reach this one.  [default: found out]",
)
@click.option(
    "--hub",
    envvar="AENV_SERVE_HUB",
    help="The URL of the hub to take environments from.  [default: a hub in this same server]",
)
@click.option(
    "--hub-quota",
    envvar="AENV_SERVE_HUB_QUOTA",
    help="Storage that a user's environments may occupy in the hub of this server; 0: no limit.  [default: 50Gi]",
)
@click.option(
    "--base-limit",
    envvar="AENV_SERVE_BASE_LIMIT",
    help="What an image that a project brings as its base may have when it is unpacked.  [default: 16Gi]",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    envvar="AENV_SERVE_METRICS_PORT",
    help="Serve /metrics on 127.0.0.1 at this port too, without a token; 0: a free one.  [default: nowhere]",
)
@click.option(
    "--engine",
    envvar="AENV_ENGINE",
    help="What instances are: native sandboxes, gvisor for stronger and slower ones, process for plain processes"
    " without any isolation, a plug-in's name, or the URL of a service that makes them.  [default: native]",
)
@click.option(
    "--pool",
    type=click.IntRange(min=0),
    envvar="AENV_POOL",
    help="Sandboxes of one kind to have ready, at the most, while they are being asked for.  [default: 8]",
)
@click.option(
    "--fork/--no-fork",
    default=None,
    envvar="AENV_FORK",
    help="Whether instances may be forks of a common parent. Without, each is a new program: it takes a second to"
    " start, and has an address layout, stack canaries and hash seed of its own.  [default: fork]",
)
@click.option(
    "--max-instances",
    type=click.IntRange(min=0),
    envvar="AENV_SERVE_MAX_INSTANCES",
    help="Instances that there is room for; further ones wait in a fair queue. 0: no limit.  [default: 0]",
)
@click.option(
    "--max-creating",
    type=click.IntRange(min=0),
    envvar="AENV_SERVE_MAX_CREATING",
    help="Instances that are made at the same time. 0: no limit.  [default: 0]",
)
@click.option(
    "--queue-seconds",
    type=click.FloatRange(min=0),
    envvar="AENV_SERVE_QUEUE_SECONDS",
    help="Seconds that a create waits for room at the most; a request may ask for less.  [default: 60]",
)
@click.option(
    "--audit",
    envvar="AENV_SERVE_AUDIT",
    help="The file that says who did what.  [default: platform/audit.jsonl in the data folder]",
)
@click.option(
    "--adopt-within",
    type=click.FloatRange(min=0),
    envvar="AENV_SERVE_ADOPT_WITHIN",
    help="Seconds that instances live on without a server, for the next one to find them; 0: they end with it."
    "  [default: 60]",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="AENV_LOG_FORMAT",
    help="How the log is written; as JSON with the ids of request, instance and trace.  [default: text]",
)
@output_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    local: bool,
    key: str | None,
    linger: float,
    file: Path | None,
    check: bool,
    output: Output,
    **given: Any,
) -> int:
    """Serve instances of environments to many users, until Ctrl-C.

    With --local it is the platform that Environment starts by itself; there is no need to run that by hand.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    _log_as(given["log_format"] or "text")
    if local:
        from aenv.client.local_lease import LocalPaths
        from aenv.hub.open_hub import open_hub
        from aenv.platform.operations.serve_local import serve as serve_local

        engine, pool = given["engine"] or "native", 8 if given["pool"] is None else given["pool"]
        return serve_local(
            LocalPaths.of_user(key),
            linger=linger,
            engine=engine,
            pool=pool,
            most=given["max_instances"] or 0,
            open_hub=open_hub,
            fork=given["fork"] is not False,
        )
    return _serve(file, check, output, given)


def _serve(file: Path | None, check: bool, output: Output, given: dict[str, Any]) -> int:
    import os
    import sys

    from aenv.cli.platform_wiring import hub_beside, hub_of
    from aenv.hub.open_hub import HubLocation
    from aenv.platform.operations.serve import serve
    from aenv.platform.operations.settings import load

    settings = load(file, {**given, **_secrets()})
    _log_as(settings.log_format)
    place = None
    if not settings.hub:
        place = HubLocation.of(os.environ.get("AENV_HUB_STORE"), os.environ.get("AENV_HUB_BLOBS"))
    if check:
        from aenv.platform.operations.serve_check import check as look

        found = asyncio.run(look(settings, hub_of(place)))
        said = [{"what": f.what, "ok": f.ok, "said": f.said, "hint": f.hint} for f in found]
        output.show(said, lambda: "\n".join(_finding(each) for each in said))
        return 0 if all(each["ok"] for each in said) else 3

    def tell(ready: PlatformReady) -> None:
        if ready.first_token:
            note("The first token of this platform, for its administrator; it is not shown again:")
            note(f"  {ready.first_token}")
        facts = {"url": ready.url, "data_url": ready.data_url, "auth": ready.auth}
        output.show(facts, lambda: _told(ready))
        sys.stdout.flush()

    beside = hub_beside(place, settings) if place is not None else None
    return serve(settings, open_hub=hub_of(place), open_embedded_hub=beside, on_ready=tell)


def _secrets() -> dict[str, str | None]:
    """From variables alone: everybody on the machine can read a command line."""
    import os

    return {"hub_token": os.environ.get("AENV_SERVE_HUB_TOKEN"), "engine_token": os.environ.get("AENV_ENGINE_TOKEN")}


def _log_as(form: str) -> None:
    import logging
    import sys

    from aenv.tracing.logging import JsonFormatter, level_from_environment, setup_logging

    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    setup_logging(handler, level_from_environment())


def _finding(each: dict[str, Any]) -> str:
    line = f"{'ok   ' if each['ok'] else 'WRONG'}  {each['what']}: {each['said']}"
    return f"{line}\n       {each['hint']}" if each["hint"] else line


def _told(ready: PlatformReady) -> str:
    lines = (f"Use it:   export AENV_SYSTEM_URL={ready.url}", f"For:      {ready.callers}", "Stop:     Ctrl-C")
    return "\n".join((f"the platform is ready at {ready.url}, calls at {ready.data_url}", "", *lines))


# --- tokens


@command.group()
def token() -> None:
    """Who may use the platform. These commands work on its store, on a machine that can reach it."""


@token.command(name="create")
@click.option("--user", default="", help="Whose it is; tokens of one user see the same instances.")
@click.option("--role", type=click.Choice(["metrics", "read-only", "user", "admin"]), default="user", show_default=True)
@click.option("--expires", help="For how long, like 720h.  [default: for ever]")
@click.option("--instances", type=click.IntRange(min=0), default=0, help="How many at a time; 0: as the server says.")
@click.option("--cpus", type=click.FloatRange(min=0), default=0.0, help="How many at a time; 0: as the server says.")
@click.option("--memory", default="0", help="How much at a time, like 64Gi; 0: as the server says.")
@click.option(
    "--rate", type=click.FloatRange(min=0), default=0.0, help="Instances made in a second; 0: as the server says."
)
@_store_option
@output_option
def token_create(
    user: str,
    role: str,
    expires: str | None,
    instances: int,
    cpus: float,
    memory: str,
    rate: float,
    store: str | None,
    output: Output,
) -> None:
    """Make a token. It is shown once."""
    from aenv.platform.access.platform_tokens import Allowance
    from aenv.project import quantities
    from aenv.schema import duration

    try:
        until = None if expires is None else time.time() + duration.parse(expires).seconds
        size = 0 if memory == "0" else quantities.size(memory)
    except ValueError as error:
        raise UsageError(str(error)) from None
    allowance = Allowance(instances=instances, cpus=cpus, memory=size, creates_per_second=rate)

    async def work(tokens: PlatformTokens) -> tuple[dict[str, Any], str]:
        made, text = await tokens.add(user=user, role=role, expires_at=until, allowance=allowance)
        return {**made.model_dump(exclude={"hash"}), "token": text}, text

    said, text = _with_tokens(store, work)
    output.show(said, lambda: text)
    if output is Output.TABLE:
        note(f"A token with the role {role}; it is not shown again. Use it:  export AENV_API_KEY=TOKEN")


@token.command(name="list")
@_store_option
@output_option
def token_list(store: str | None, output: Output) -> None:
    """Show all tokens, without their texts."""

    async def work(tokens: PlatformTokens) -> list[dict[str, Any]]:
        return [each.model_dump(exclude={"hash"}) for each in await tokens.all()]

    said = _with_tokens(store, work)
    rows = [("ID", "USER", "ROLE", "STATE", "INSTANCES", "CREATED")]
    for each in said:
        most = each["allowance"]["instances"] or "-"
        rows.append((each["id"], each["user"], each["role"], _state(each), str(most), each["created_at"][:16]))
    output.show(said, lambda: columns(rows, indent="") if said else "no tokens")


@token.command(name="revoke")
@click.argument("id")
@_store_option
@output_option
def token_revoke(id: str, store: str | None, output: Output) -> None:
    """Have a token open nothing any more, within two seconds."""

    async def work(tokens: PlatformTokens) -> dict[str, Any]:
        return (await tokens.revoke(id)).model_dump(exclude={"hash"})

    said = _with_tokens(store, work)
    output.show(said, lambda: f"revoked {id}")


def _state(token: dict[str, Any]) -> str:
    if token["revoked_at"] is not None:
        return "revoked"
    if token["expires_at"] is None:
        return "valid"
    until = time.strftime("%Y-%m-%d %H:%M", time.gmtime(token["expires_at"]))
    return "expired" if token["expires_at"] <= time.time() else f"until {until}"


def _with_tokens(store: str | None, work: Callable[[PlatformTokens], Awaitable[T]]) -> T:
    from aenv.platform.access.platform_tokens import PlatformTokens
    from aenv.platform.operations.settings import ServeSettings
    from aenv.storage.open_url import open_store

    async def main() -> T:
        opened = open_store(ServeSettings(store=store or "").store_url)
        try:
            return await work(PlatformTokens(opened))
        finally:
            await opened.close()

    return asyncio.run(main())
