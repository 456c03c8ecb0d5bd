"""``aenv run``: serve an environment on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from aenv._version import __version__
from aenv.cli.global_options import GlobalOptions
from aenv.cli.mcp.inspector import Inspector
from aenv.cli.output import Output, columns, note, output_option
from aenv.cli.reload import HURRY_SECONDS, Reloader, answers, free_port
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.project.locate import Located
    from aenv.runtime.serve import RuntimeReady, ServeOptions
    from aenv.runtime.stdio import HostPipes

DEFAULT_PORT = 8081
KINDS = ("tools", "functions", "rewards", "health")
NOT_WITH_STDIO = ("reload", "host", "port", "token", "no_auth", "output", "inspector_port")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@click.command(name="run")
@click.argument("path", type=click.Path(path_type=Path), required=False)
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
@click.option("--reload", is_flag=True, help="Start the server again when the project's code changes.")
@click.option("--stdio", is_flag=True, help="Speak MCP over stdin and stdout, for a desktop program that starts this.")
@click.option("--grace", type=float, default=10.0, show_default=True, help="Seconds for running calls to end.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), help="Log level.  [default: INFO]")
@output_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    path: Path | None,
    work_dir: Path,
    host: str,
    port: int,
    name: str | None,
    quiet: bool,
    inspector_port: int,
    no_inspector: bool,
    no_auth: bool,
    token: str | None,
    reload: bool,
    stdio: bool,
    grace: float,
    log_level: str | None,
    output: Output,
) -> int:
    """Serve an environment on this machine: MCP at /mcp, functions, rewards and health over HTTP.

    PATH is a project, its src/ or one file of it; without it, the current directory. Packages of its requirements.txt
    that are missing are installed first, into a folder of their own. Ctrl-C stops the server.
    """
    global_options: GlobalOptions = ctx.obj
    pipes = _host_pipes(ctx) if stdio else None
    from aenv.runtime.serve import ServeOptions
    from aenv.tracing.logging import level_from_environment, setup_logging

    project = _find_project(work_dir, path)
    _warn(project)
    level = log_level or ("DEBUG" if global_options.verbose else level_from_environment())
    setup_logging(logging.StreamHandler(sys.stderr), level.upper())
    name = name or (project.loaded.manifest.name if project.loaded else "aenv-server")
    if pipes is not None:
        return _serve_stdio(project, pipes, name)
    if reload:
        port = port or free_port(host)
        inspector_port = 0 if quiet or no_inspector else inspector_port
        return _serve_again(ctx, project, port, Inspector(inspector_port) if inspector_port else None, name)
    version = project.loaded.manifest.version if project.loaded else __version__
    served = f"{name}@{version}"
    options = ServeOptions(
        path=project.code, host=host, port=port, name=served, token=token or None, no_auth=no_auth, grace=grace
    )
    inspector = None if quiet or no_inspector else Inspector(inspector_port)
    return _serve_once(project, options, inspector, name, output, quiet=quiet)


def _find_project(work_dir: Path, path: Path | None) -> Located:
    from aenv.project.locate import locate

    project = locate(work_dir / (path or ""))
    if path is None and project.loaded is None and not (project.root / "src").is_dir():
        raise UsageError(
            f"there is no project in {project.root}: it has neither config.json nor src/",
            {"hint": "Change to the project's directory. To import all Python files of this folder: aenv run ."},
        )
    return project


def _serve_once(
    project: Located, options: ServeOptions, inspector: Inspector | None, name: str, output: Output, *, quiet: bool
) -> int:
    """Serve the project in this process until a signal to stop."""
    from aenv.runtime.serve import serve
    from aenv.tracing.waits import waiting_for

    with ExitStack() as stack:
        if inspector is not None:
            stack.enter_context(inspector)
        loading = stack.enter_context(ExitStack())

        def announce(ready: RuntimeReady) -> None:
            loading.close()
            output.show(_facts(project, ready), lambda: _tell(project, ready, quiet=quiet, token=bool(options.token)))
            sys.stdout.flush()
            if inspector is not None:
                note(f"MCP Inspector: {inspector.start(name, _mcp(ready), options.token)}")

        os.environ.pop("AENV_TOKEN", None)  # the author's code must not see it
        _enter(project)
        loading.enter_context(waiting_for(f"{project.code} to be imported"))
        return serve(options, announce)


def _host_pipes(ctx: click.Context) -> HostPipes:
    """Take stdin and stdout for the protocol. Raises UsageError for options that say something about a port."""
    from aenv.runtime.stdio import HostPipes

    for option in NOT_WITH_STDIO:
        if ctx.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"--stdio cannot be combined with --{option.replace('_', '-')}")
    return HostPipes.take()


def _serve_stdio(project: Located, pipes: HostPipes, name: str) -> int:
    from aenv.runtime.calls.endpoints import EndpointCatalog
    from aenv.runtime.loader import load
    from aenv.runtime.stdio import serve_stdio

    os.environ.pop("AENV_TOKEN", None)
    _enter(project)
    catalog = EndpointCatalog(load(project.code))
    catalog.check()
    version = project.loaded.manifest.version if project.loaded else __version__
    serve_stdio(catalog, pipes, name=name, version=version)
    return 0


def _serve_again(ctx: click.Context, project: Located, port: int, inspector: Inspector | None, name: str) -> int:
    """Serve in a child process that is replaced when the project's code changes."""
    given: dict[str, Any] = ctx.params
    host, global_options = given["host"], ctx.obj
    own = [sys.executable, "-m", "aenv.cli", *(["-v"] if global_options.verbose else [])]
    options = ["--host", host, "--port", str(port), "--no-inspector", "--output", str(given["output"])]
    options += ["--grace", f"{HURRY_SECONDS:g}"]
    for option in ("name", "log_level"):
        options += [f"--{option.replace('_', '-')}", given[option]] if given[option] else []
    options += [f"--{option.replace('_', '-')}" for option in ("quiet", "no_auth") if given[option]]
    variables = {**os.environ, **({"AENV_TOKEN": given["token"]} if given["token"] else {})}
    reloader = Reloader([*own, "run", str(project.code), *options], project.root, variables)
    if inspector is None:
        return reloader.run()
    started = False

    def start_inspector() -> None:
        nonlocal started
        address = _local(f"//{host}:").strip("/:")
        if not started and answers(address, port):
            started = True
            note(f"MCP Inspector: {inspector.start(name, f'http://{address}:{port}/mcp', given['token'])}")

    with inspector:
        return reloader.run(start_inspector)


def _warn(project: Located) -> None:
    if project.loaded is None:
        note("Warning: there is no config.json here; serving without one")
    for warning in project.loaded.warnings if project.loaded else ():
        note(f"Warning: {warning}")


def _enter(project: Located) -> None:
    """Set what an instance would have: its packages, the project as current directory, and its variables."""
    from aenv.engines.package_layers import folders_of

    sys.path[:0] = asyncio.run(folders_of(project.root))
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
        "dummy_instance_ip": client_address(ready),
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
            f"Python:        export AENV_INSTANCE_URL={client_address(ready)}",
            *(["               export AENV_API_KEY=<the token>"] if token else []),
            "Stop:          Ctrl-C",
        ]
    )


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _mcp(ready: RuntimeReady) -> str:
    return f"{_local(ready.url)}/mcp"


def client_address(ready: RuntimeReady) -> str:
    """Return the value for AENV_INSTANCE_URL; the SDK adds the default port."""
    address = urlsplit(_local(ready.url))
    host = "localhost" if address.hostname == "127.0.0.1" else address.netloc.rpartition(":")[0]
    port = "" if address.port == DEFAULT_PORT else f":{address.port}"
    return f"http://{host}{port}"


def _local(url: str) -> str:
    """Return the server's URL as seen from this machine: a wildcard address cannot be connected to."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
