"""``aenv serve``: the platform as a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.output import Output, columns, note, output_option
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.platform.access.platform_tokens import PlatformTokens
    from aenv.platform.operations.serve import PlatformReady

T = TypeVar("T")

_store_option = click.option(
    "--store",
    envvar="AENV_SERVE_STORE",
    help="Store of tokens and records: a file, or redis://HOST.  [default: platform/platform.db in the data folder]",
)


@click.group(cls=CommandGroup, name="serve", invoke_without_command=True)
@click.option("--local", is_flag=True, help="Serve this user on this machine, on a unix socket.")
@click.option("--key", hidden=True, help="With --local: key of the platform among this user's.")
@click.option("--detach", is_flag=True, hidden=True, help="With --local: be no child of the process that starts it.")
@click.option(
    "--linger",
    type=float,
    default=600.0,
    show_default=True,
    envvar="AENV_LOCAL_LINGER",
    help="With --local: seconds to keep running after the last client has left.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="AENV_SERVE_CONFIG",
    help="TOML file with these settings; options win over it.",
)
@click.option("--check", is_flag=True, help="Check the settings and the host, report problems, and serve nothing.")
@click.option("--host", envvar="AENV_SERVE_HOST", help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "-p",
    "--port",
    type=int,
    envvar="AENV_SERVE_PORT",
    help="Port of the control plane; 0 picks a free one.  [default: 8080]",
)
@click.option(
    "--data-port",
    type=int,
    envvar="AENV_SERVE_DATA_PORT",
    help="Port of the data plane; 0 picks a free one.  [default: 8081]",
)
@click.option("--one-port", is_flag=True, default=None, help="Serve both planes on --port.")
@click.option("--prefix", envvar="AENV_SERVE_PREFIX", help="Path prefix that a reverse proxy in front leaves in place.")
@click.option("--tls-cert", envvar="AENV_SERVE_TLS_CERT", help="Serve with TLS: PEM file of the certificate.")
@click.option("--tls-key", envvar="AENV_SERVE_TLS_KEY", help="PEM file of the certificate's key.")
@click.option(
    "--public-url",
    envvar="AENV_SERVE_PUBLIC_URL",
    help="URL under which users reach the platform, for URLs in its answers.  [default: that of the request]",
)
@click.option(
    "--auth/--no-auth",
    default=None,
    help="Require a token from callers.  [default: if other machines can reach the server]",
)
@_store_option
@click.option(
    "--advertise",
    envvar="AENV_SERVE_ADVERTISE",
    help="URL at which other servers on the same Redis reach this one.  [default: detected]",
)
@click.option(
    "--hub",
    envvar="AENV_SERVE_HUB",
    help="URL of the hub to take environments from.  [default: a hub in this server]",
)
@click.option(
    "--hub-quota",
    envvar="AENV_SERVE_HUB_QUOTA",
    help="Storage quota of a user in the hub of this server; 0 means no limit.  [default: 50Gi]",
)
@click.option(
    "--base-limit",
    envvar="AENV_SERVE_BASE_LIMIT",
    help="Maximum unpacked size of an image that a project brings as its base.  [default: 16Gi]",
)
@click.option(
    "--model-url",
    "model_urls",
    multiple=True,
    envvar="AENV_SERVE_MODEL_URL",
    help="Model endpoint that rollouts of callers may use; may be repeated.  [default: none, and any where only"
    " this machine reaches the server]",
)
@click.option(
    "--blobs",
    envvar="AENV_SERVE_BLOBS",
    help="Storage of trajectories: a folder, or s3://BUCKET/PREFIX.  [default: platform/blobs in the data folder]",
)
@click.option(
    "--trajectory-quota",
    envvar="AENV_SERVE_TRAJECTORY_QUOTA",
    help="Compressed size of the trajectories of a user; 0 means no limit.  [default: 50Gi]",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    envvar="AENV_SERVE_METRICS_PORT",
    help="Serve /metrics on 127.0.0.1 at this port too, without a token; 0 picks a free one.  [default: off]",
)
@click.option(
    "--console/--no-console",
    default=None,
    envvar="AENV_SERVE_CONSOLE",
    help="Serve the web console at /console/.  [default: serve it]",
)
@click.option(
    "--trace-url",
    envvar="AENV_TRACE_URL",
    help="Where the console's links to traces lead, as in https://jaeger.example/trace/{trace}.  [default: no links]",
)
@click.option(
    "--engine",
    envvar="AENV_ENGINE",
    help="Engine of instances: native sandboxes, gvisor for stronger and slower ones, docker for containers,"
    " kubernetes for pods of a cluster, process for plain processes without any isolation, a plug-in's name, or the URL"
    " of a service that makes them.  [default: native]",
)
@click.option(
    "--pool",
    type=click.IntRange(min=0),
    envvar="AENV_POOL",
    help="Maximum number of sandboxes per kind to keep ready while they are in demand.  [default: 8]",
)
@click.option(
    "--fork/--no-fork",
    default=None,
    envvar="AENV_FORK",
    help="Let instances be forks of a common parent. Without, each is a new program: it takes a second to"
    " start, and has an address layout, stack canaries and hash seed of its own.  [default: fork]",
)
@click.option(
    "--isolation",
    type=click.Choice(["namespaces", "confined", "auto"]),
    envvar="AENV_ISOLATION",
    help="Isolation level of the native engine. confined works in containers that forbid namespaces, and hides less;"
    " auto uses namespaces where the host allows them, else confined.  [default: namespaces]",
)
@click.option(
    "--max-instances",
    type=click.IntRange(min=0),
    envvar="AENV_SERVE_MAX_INSTANCES",
    help="Maximum number of instances; further creates wait in a fair queue. 0: as many as the machine has room for.  "
    "[default: 0]",
)
@click.option(
    "--max-creating",
    type=click.IntRange(min=0),
    envvar="AENV_SERVE_MAX_CREATING",
    help="Maximum number of creates at the same time. 0 means no limit.  [default: 0]",
)
@click.option(
    "--queue-seconds",
    type=click.FloatRange(min=0),
    envvar="AENV_SERVE_QUEUE_SECONDS",
    help="Maximum seconds that a create waits for capacity; a request may ask for less.  [default: 60]",
)
@click.option(
    "--datasource-root",
    "datasource_roots",
    multiple=True,
    callback=lambda ctx, param, value: value or None,
    help="Folder of this machine whose folders a datasource may name, to be shown read-only in instances; may be"
    " repeated.  [default: none]",
)
@click.option(
    "--audit",
    envvar="AENV_SERVE_AUDIT",
    help="Audit log: a JSON object per line.  [default: platform/audit.jsonl in the data folder]",
)
@click.option(
    "--adopt-within",
    type=click.FloatRange(min=0),
    envvar="AENV_SERVE_ADOPT_WITHIN",
    help="Seconds that instances survive without a server, for the next one to adopt; 0 ends them with the server."
    "  [default: 60]",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="AENV_LOG_FORMAT",
    help="Log format; json has the ids of request, instance and trace.  [default: text]",
)
@output_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    local: bool,
    key: str | None,
    detach: bool,
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
            isolation=given["isolation"] or "namespaces",
            detach=detach,
        )
    given["model_urls"] = list(given["model_urls"]) or None
    return _serve(file, check, output, given)


def _serve(file: Path | None, check: bool, output: Output, given: dict[str, Any]) -> int:
    import os
    import sys

    from aenv.cli.platform_wiring import console_beside, embedded_hub_opener, hub_opener
    from aenv.hub.open_hub import HubLocation
    from aenv.platform.operations.serve import serve
    from aenv.platform.operations.settings import load

    settings = load(file, {**given, **_secrets()})
    _log_as(settings.log_format)
    place = None
    if not settings.hub:
        place = HubLocation.of(os.environ.get("AENV_HUB_STORE"), os.environ.get("AENV_HUB_BLOBS"))
    if check:
        from aenv.platform.operations.serve_check import check as check_settings

        found = asyncio.run(check_settings(settings, hub_opener(place)))
        said = [{"what": f.what, "ok": f.ok, "said": f.said, "hint": f.hint} for f in found]
        output.show(said, lambda: "\n".join(_finding(each) for each in said))
        return 0 if all(each["ok"] for each in said) else 3

    def tell(ready: PlatformReady) -> None:
        if ready.first_token:
            note("The first token of this platform, for its administrator; it is not shown again:")
            note(f"  {ready.first_token}")
        facts = {"url": ready.url, "data_url": ready.data_url, "auth": ready.auth}
        output.show(facts, lambda: _told(ready, console=settings.console))
        sys.stdout.flush()

    open_embedded_hub = embedded_hub_opener(place, settings) if place is not None else None
    return serve(
        settings,
        open_hub=hub_opener(place),
        open_embedded_hub=open_embedded_hub,
        on_ready=tell,
        beside=console_beside(settings),
    )


def _secrets() -> dict[str, str | None]:
    """Read secrets from variables only: every user of the machine can read a command line."""
    import os

    return {
        "admin_token": os.environ.get("AENV_SERVE_ADMIN_TOKEN"),
        "hub_token": os.environ.get("AENV_SERVE_HUB_TOKEN"),
        "engine_token": os.environ.get("AENV_ENGINE_TOKEN"),
    }


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


def _told(ready: PlatformReady, *, console: bool) -> str:
    lines = [f"Use it:   export AENV_SYSTEM_URL={ready.url}", f"For:      {ready.callers}", "Stop:     Ctrl-C"]
    if console:
        lines.insert(1, f"Look:     {ready.url}/console/")
    return "\n".join((f"the platform is ready at {ready.url}, calls at {ready.data_url}", "", *lines))


# --- tokens


@command.group()
def token() -> None:
    """Create, list and revoke the platform's tokens, directly in its store."""


@token.command(name="create")
@click.option("--user", default="", help="User of the token; tokens of one user see the same instances.")
@click.option("--role", type=click.Choice(["metrics", "read-only", "user", "admin"]), default="user", show_default=True)
@click.option("--expires", help="Lifetime, like 720h.  [default: does not expire]")
@click.option(
    "--instances",
    type=click.IntRange(min=0),
    default=0,
    help="Maximum number of instances at a time; 0: the server's default.",
)
@click.option(
    "--cpus",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Maximum number of CPUs at a time; 0: the server's default.",
)
@click.option("--memory", default="0", help="Maximum memory at a time, like 64Gi; 0: the server's default.")
@click.option(
    "--rate", type=click.FloatRange(min=0), default=0.0, help="Maximum creates per second; 0: the server's default."
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
    """Create a token. It is shown once."""
    from aenv.platform.access.platform_tokens import Allowance
    from aenv.schema import duration, quantities

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
    """List the tokens, without their secrets."""

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
    """Revoke a token. Servers stop accepting it within two seconds."""

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
