"""``aenv instance shell``, ``exec``, ``processes``, ``attach``, ``kill`` and ``forward``."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from aenv.cli.inside.access import with_instance
from aenv.cli.inside.text import printable
from aenv.cli.output import Output, columns, note, output_option
from aenv.cli.platform_address import pairs_of, platform_options
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment

SHELL = "if command -v bash >/dev/null; then exec bash; fi; exec sh"
_PROGRAM = {"ignore_unknown_options": True, "allow_interspersed_args": False}

_env_option = click.option(
    "-e", "--env", "variables", multiple=True, metavar="KEY=VALUE", help="Environment variable; may be repeated."
)
_cwd_option = click.option("-w", "--cwd", help="Working directory.  [default: the project]")


@click.command(context_settings=_PROGRAM)
@_env_option
@_cwd_option
@platform_options
@click.argument("id")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(
    id: str,
    command: tuple[str, ...],
    variables: tuple[str, ...],
    cwd: str | None,
    system_url: str | None,
    api_key: str | None,
) -> int:
    """Open a shell on a terminal in an instance, or run COMMAND on one.

    ID is an instance, or the name of an environment that has one. Exit from the shell to end it; if it hangs, press
    Enter, ~ and a dot to disconnect. Programs in it can send anything to your terminal.
    """
    from aenv.cli.inside import terminal

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("stdin and stdout must be a terminal; without one, use: aenv instance exec")
    rows, width = terminal.size()
    request = {
        "command": list(command) or SHELL,
        "env": {"TERM": _terminal_type(), **pairs_of("--env", variables)},
        "tty": True,
        "interactive": True,
        "rows": rows,
        "columns": width,
        **({"cwd": cwd} if cwd else {}),
    }

    async def work(env: Environment) -> int:
        from aenv.sdk.inside.remote_process import Process

        async with Process(env, request) as process:
            return await terminal.run_on_terminal(process)

    return with_instance(id, system_url, api_key, work)


@click.command(context_settings=_PROGRAM)
@click.option("-i", "--interactive", is_flag=True, help="Send this command's standard input.")
@click.option("-t", "--tty", is_flag=True, help="Run it on a terminal, as 'aenv instance shell' does.")
@click.option("-d", "--detach", is_flag=True, help="Let it run in the background and print its number.")
@_env_option
@_cwd_option
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Timeout in seconds; 0: none.")
@platform_options
@click.argument("id")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def exec(
    context: click.Context,
    id: str,
    command: tuple[str, ...],
    interactive: bool,
    tty: bool,
    detach: bool,
    variables: tuple[str, ...],
    cwd: str | None,
    timeout: float,
    system_url: str | None,
    api_key: str | None,
) -> int:
    """Run COMMAND in an instance: one word is a line for its shell, more are a program and its arguments.

    The output is shown while it runs, and the exit code is the command's. Ctrl-C interrupts the command.
    """
    words = command[1:] if command[0] == "--" else command
    line: str | list[str] = words[0] if len(words) == 1 else list(words)
    if tty:
        if detach:
            raise UsageError("--detach excludes --tty")
        on_terminal = ["/bin/sh", "-c", line] if isinstance(line, str) else line
        code: int = context.invoke(
            shell, id=id, command=tuple(on_terminal), variables=variables, cwd=cwd, system_url=system_url,
            api_key=api_key,
        )  # fmt: skip
        return code
    limit, own = timeout or None, pairs_of("--env", variables)
    if detach:
        _detach(id, line, system_url, api_key, cwd=cwd, env=own, interactive=interactive)
        return 0

    async def work(env: Environment) -> int:
        from aenv.cli.inside import terminal

        async with env.exec(line, limit, cwd=cwd, env=own, stream=True, interactive=interactive) as process:
            code = await terminal.run_on_pipes(process, stdin=interactive)
            if process.timed_out:
                note(f"timed out after {timeout:g} s")
                return 1
            return code

    return with_instance(id, system_url, api_key, work)


def _detach(id: str, line: str | list[str], system_url: str | None, api_key: str | None, **options: Any) -> None:
    async def work(env: Environment) -> int | None:
        return (await env.exec(line, background=True, **options)).id

    number = with_instance(id, system_url, api_key, work)
    click.echo(number)
    note(f"Runs in the background. Output: aenv instance attach {id} {number}. End: aenv instance kill {id} {number}")


@click.command()
@click.argument("id")
@platform_options
@output_option
def processes(id: str, system_url: str | None, api_key: str | None, output: Output) -> None:
    """List the processes that 'exec' and 'shell' have started in an instance."""

    async def work(env: Environment) -> list[dict[str, Any]]:
        return await env.processes()

    found = with_instance(id, system_url, api_key, work)
    output.show(found, lambda: _process_table(found))


@click.command()
@click.argument("id")
@click.argument("process", type=click.IntRange(min=1))
@click.option("-i", "--interactive", is_flag=True, help="Send this command's standard input.")
@platform_options
def attach(id: str, process: int, interactive: bool, system_url: str | None, api_key: str | None) -> int:
    """Show the output of a background process until it ends; the exit code is the process's."""

    async def work(env: Environment) -> int:
        from aenv.cli.inside import terminal

        async with env.process(process) as attached:
            return await terminal.run_on_pipes(attached, stdin=interactive)

    return with_instance(id, system_url, api_key, work)


@click.command()
@click.argument("id")
@click.argument("process", type=click.IntRange(min=1))
@click.option("-s", "--signal", default="TERM", show_default=True, help="Name or number of the signal.")
@platform_options
def kill(id: str, process: int, signal: str, system_url: str | None, api_key: str | None) -> None:
    """Send a signal to a process that 'exec' has started, and to its children."""

    async def work(env: Environment) -> None:
        await env.process(process).kill(signal)

    with_instance(id, system_url, api_key, work)


@click.command()
@click.argument("id")
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]PORT...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of this machine to listen on.")
@platform_options
def forward(id: str, ports: tuple[str, ...], host: str, system_url: str | None, api_key: str | None) -> None:
    """Forward TCP ports of this machine to ports inside an instance, until Ctrl-C.

    8000 forwards the same number, 9000:8000 another one, and :8000 a free one.
    """
    pairs = [_ports(text) for text in ports]

    async def work(env: Environment) -> None:
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as stack:
            for local, remote in pairs:
                opened = await stack.enter_async_context(env.forward(remote, local, host))
                click.echo(f"{opened.host}:{opened.port} -> {remote}")
            sys.stdout.flush()
            note("Press Ctrl-C to stop.")
            await asyncio.Event().wait()

    with_instance(id, system_url, api_key, work)


ALL = (shell, exec, processes, attach, kill, forward)


def _ports(text: str) -> tuple[int, int]:
    local, colon, remote = text.rpartition(":")
    for part in (remote, *([local] if local else [])):
        if not (part.isascii() and part.isdigit() and 1 <= int(part[:9]) <= 65535):
            raise UsageError(f"invalid port '{text}'; write PORT, LOCAL:PORT or :PORT")
    return (int(local) if local else 0 if colon else int(remote)), int(remote)


def _terminal_type() -> str:
    own = os.environ.get("TERM", "")
    return own if re.fullmatch(r"[A-Za-z0-9._+-]{1,64}", own) else "xterm"


def _process_table(found: list[dict[str, Any]]) -> str:
    if not found:
        return "no processes"
    rows = [("PROCESS", "PID", "STATE", "COMMAND")]
    for each in found:
        line = each["command"] if isinstance(each["command"], str) else " ".join(each["command"])
        code = each.get("exit_code")
        state = "running" if code is None else f"exit code {code}"
        shown = printable(line.replace("\n", " "))
        rows.append((str(each["id"]), str(each["pid"]), state, shown if len(shown) <= 80 else f"{shown[:77]}..."))
    return columns(rows, indent="")
