"""``python -m aenv.main PATH``: the server inside a sandbox."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from aenv.errors import AEnvError
from aenv.tracing.logging import LEVELS, getLogger, level_from_environment, setup_logging

log = getLogger("main")


def run_cli(argv: Sequence[str] | None = None) -> int:
    """Serve an environment, and return the exit code of the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, environment_arguments = arguments[:end], arguments[end + 1 :]
    try:
        options = build_parser().parse_args(own)
    except AEnvError as error:
        print(f"Error: {error.message}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    setup_logging(logging.StreamHandler(sys.stderr), options.log_level.upper())
    from aenv.runtime import container_command as container
    from aenv.runtime.serve import RuntimeReady, ServeOptions, serve

    def announce(ready: RuntimeReady) -> None:
        print(f"aenv: serving {len(ready.catalog.tools)} tools at {ready.url}", flush=True)  # noqa: T201

    opened = options.host is None and options.uds is None and container.is_container_command()
    opened = opened and container.has_own_network()
    token = _take_token()
    if opened and token is None and not options.no_auth:
        log.warning(
            "this is a container's command: listening at 0.0.0.0 without a token, for whoever reaches the container. "
            "Set AENV_TOKEN to require one, or AENV_HOST=127.0.0.1 to stay inside"
        )
    _declare_choices(Path(options.tools_path))
    sys.argv = [str(options.tools_path), *environment_arguments]
    try:
        return serve(
            ServeOptions(
                path=Path(options.tools_path),
                host=options.host or ("0.0.0.0" if opened else "127.0.0.1"),
                port=options.port,
                uds=options.uds,
                name=options.name,
                token=token,
                no_auth=options.no_auth or opened,
                refuse_web_pages=opened and not options.no_auth,
                max_body=options.max_body,
                grace=options.grace,
                snapshot=options.snapshot,
                withheld=options.withheld,
            ),
            announce,
        )
    except AEnvError as error:
        print(f"Error: {error.message}", file=sys.stderr)  # noqa: T201
        return error.exit_code


def _declare_choices(path: Path) -> None:
    """Set the variables of the choices in the project's config.json that the runtime needs; see `Manifest`."""
    folder = path.absolute() if path.is_dir() else path.absolute().parent
    for root in (folder, folder.parent):
        try:
            found = json.loads((root / "config.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            earlier = found.get("compatibility") == "0.1"
            if earlier:
                os.environ.setdefault("AENV_COMPATIBILITY", "0.1")
            if earlier or found.get("argumentTypes") == "lenient":
                os.environ.setdefault("AENV_ARGUMENT_TYPES", "lenient")
        return


def _take_token() -> str | None:
    """Remove the token from the environment variables and return it, so that neither tools nor their programs see it.

    Programs of the same user could still read it in /proc/PID/environ. The kernel denies that once this process is not
    dumpable.
    """
    token = os.environ.pop("AENV_TOKEN", None) or None
    if token is not None and sys.platform == "linux":
        from aenv.isolation.kernel import linux

        linux.set_dumpable(False)
    return token


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aenv.main",
        description="Serve an environment: MCP at /mcp, functions, rewards and health over plain HTTP.",
        usage="python -m aenv.main PATH [options] [-- ARG ...]",
        epilog="Arguments after -- are passed to the environment's code in sys.argv. "
        "If AENV_TOKEN is set, callers must send it as a bearer token.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("tools_path", metavar="PATH", help="a .py file, a folder, or a project (its src/ is used)")
    add(
        "--host",
        default=os.environ.get("AENV_HOST") or None,
        help="address (default 127.0.0.1; 0.0.0.0 as the command of a container with a network of its own)",
    )
    add(
        "--port",
        type=int,
        default=os.environ.get("AENV_PORT", "8081"),  # argparse converts a string default like an option
        help="port (default %(default)s)",
    )
    add("--uds", help="listen on this unix socket instead")
    add("--name", default="aenv-server", help="the server's name in MCP (default %(default)s)")
    add(
        "--no-auth",
        action="store_true",
        default=os.environ.get("AENV_NO_AUTH", "") not in ("", "0"),
        help="serve beyond loopback without a token",
    )
    add("--max-body", type=int, default=64 * 1024 * 1024, help="largest request body (default %(default)s)")
    add("--grace", type=float, default=10.0, help="seconds to finish calls on SIGTERM (default %(default)s)")
    add("--log-level", type=str.upper, choices=LEVELS, default=level_from_environment(), help="default %(default)s")
    add("--snapshot", help=argparse.SUPPRESS)  # passed by engines, like --withheld
    add("--withheld", help=argparse.SUPPRESS)
    add("--log-dir", help=argparse.SUPPRESS)  # accepted for start scripts of version 0.1
    return parser


if __name__ == "__main__":
    sys.exit(run_cli())
