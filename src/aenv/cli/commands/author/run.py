"""``aenv run``: serve an environment on this machine."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from aenv.cli.inspector import Inspector
from aenv.cli.output import Output, columns, note, output_option
from aenv.cli.session import Session

if TYPE_CHECKING:
    from aenv.project.locate import Located
    from aenv.runtime.serve import RuntimeReady

DEFAULT_PORT = 8081
KINDS = ("tools", "functions", "rewards", "health")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@click.command(name="run")
@click.argument("path", type=click.Path(path_type=Path), required=False, default=Path())
@click.option(
    "-w",
    "--work-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="Directory that PATH is relative to.  [default: the current directory]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--name", help="Name of the server in MCP.  [default: the name in config.json]")
@click.option("-q", "--quiet", is_flag=True, help="Print one line when ready, and start no MCP Inspector.")
@click.option(
    "--inspector-port",
    type=click.IntRange(1, 65535),
    default=6274,
    show_default=True,
    help="Port of MCP Inspector.",
)
@click.option("--no-inspector", is_flag=True, help="Do not start MCP Inspector.")
@click.option("--no-auth", is_flag=True, help="Serve other machines without a token.")
@click.option(
    "--token",
    envvar="AENV_TOKEN",
    show_envvar=True,
    help="Bearer token that callers must send. Prefer the variable: ps shows command lines.",
)
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), help="Log level.  [default: INFO]")
@output_option
@click.pass_obj
def command(
    session: Session,
    /,
    path: Path,
    work_dir: Path,
    host: str,
    port: int,
    name: str | None,
    quiet: bool,
    inspector_port: int,
    no_inspector: bool,
    no_auth: bool,
    token: str | None,
    log_level: str | None,
    output: Output,
) -> int:
    """Serve an environment on this machine: MCP at /mcp, functions, rewards and health over HTTP.

    PATH is a project, its src/ or one file of it; without it, the current directory. Ctrl-C stops the server.
    """
    from aenv.project.locate import locate
    from aenv.runtime.serve import ServeOptions, serve
    from aenv.tracing.logging import level_from_environment, setup_logging

    project = locate(work_dir / path)
    _warn(project)
    level = log_level or ("DEBUG" if session.verbose else level_from_environment())
    setup_logging(logging.StreamHandler(sys.stderr), level.upper())
    name = name or (project.loaded.manifest.name if project.loaded else "aenv-server")
    options = ServeOptions(path=project.code, host=host, port=port, name=name, token=token or None, no_auth=no_auth)
    with ExitStack() as stack:
        inspector = None if quiet or no_inspector else stack.enter_context(Inspector(inspector_port))

        def announce(ready: RuntimeReady) -> None:
            output.show(_facts(project, ready), lambda: _tell(project, ready, quiet=quiet, token=bool(token)))
            sys.stdout.flush()
            if inspector is not None:
                note(f"MCP Inspector: {inspector.start(name, _mcp(ready), options.token)}")

        os.environ.pop("AENV_TOKEN", None)  # the author's code must not see it
        _enter(project)
        return serve(options, announce)


def _warn(project: Located) -> None:
    if project.loaded is None:
        note("Warning: there is no config.json here; serving without one")
    for warning in project.loaded.warnings if project.loaded else ():
        note(f"Warning: {warning}")


def _enter(project: Located) -> None:
    """Set what an instance would have: the project as current directory, and its variables."""
    os.chdir(project.root)
    for name, value in project.variables.items():
        os.environ.setdefault(name, value)


def _facts(project: Located, ready: RuntimeReady) -> dict[str, Any]:
    own = project.loaded.manifest if project.loaded else None
    return {
        "name": own.name if own else None,
        "version": own.version if own else None,
        "url": ready.url,
        "mcp_url": _mcp(ready),
        "dummy_instance_ip": _client_address(ready),
        **{
            kind: [{"name": each.name, "description": each.description} for each in getattr(ready.catalog, kind)]
            for kind in KINDS
        },
    }


def _tell(project: Located, ready: RuntimeReady, *, quiet: bool, token: bool) -> str:
    own = project.loaded.manifest if project.loaded else None
    title = click.style(f"{own.name} {own.version}" if own else project.code.name, bold=True)
    first = f"{title} is ready at {ready.url}"
    if quiet:
        return first
    rows = [
        (kind if index == 0 else "", each.name, _first_line(each.description))
        for kind in KINDS
        for index, each in enumerate(getattr(ready.catalog, kind))
    ]
    return "\n".join(
        [
            first,
            "",
            columns(rows),
            "",
            f"MCP clients:   {_mcp(ready)}",
            f"Python:        export AENV_INSTANCE_URL={_client_address(ready)}",
            *(["               export AENV_API_KEY=<the token>"] if token else []),
            "Stop:          Ctrl-C",
        ]
    )


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _mcp(ready: RuntimeReady) -> str:
    return f"{_local(ready.url)}/mcp"


def _client_address(ready: RuntimeReady) -> str:
    """Return the value for AENV_INSTANCE_URL; the SDK adds the default port."""
    address = urlsplit(_local(ready.url))
    host = "localhost" if address.hostname == "127.0.0.1" else address.netloc.rpartition(":")[0]
    port = "" if address.port == DEFAULT_PORT else f":{address.port}"
    return f"http://{host}{port}"


def _local(url: str) -> str:
    """Return the server's URL as seen from this machine: a wildcard address cannot be connected to."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
