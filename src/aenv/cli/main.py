"""Entry point of the ``aenv`` command: the list of commands, and exit codes.

A command returns its exit code, or raises. Whatever it raises becomes a message on stderr and an exit code
here and nowhere else: 1 it failed, 2 it was called wrongly, 3 the configuration is wrong, 4 the environment's
code is broken, 130 it was interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module

import click

from aenv import __version__
from aenv.cli.command_group import CommandGroup
from aenv.cli.global_options import GlobalOptions
from aenv.cli.output import color, note
from aenv.cli.settings_takeover import take_over
from aenv.errors import AEnvError

GROUPS: dict[str, dict[str, str]] = {
    "author": {
        "init": "Create a new environment project.",
        "run": "Serve an environment on this machine.",
        "test": "Run a project's tests.",
        "build": "Build a project's bundle, and its image.",
    },
    "publish": {
        "push": "Publish a project's bundle to the hub.",
        "pull": "Download an environment's files from the hub.",
        "list": "List the environments in the hub.",
        "get": "Show one environment of the hub.",
        "search": "Search the hub for environments.",
        "release": "Make a version final.",
        "deprecate": "Mark a version as deprecated.",
        "yank": "Hide a version from all who do not name it exactly.",
    },
    "run": {
        "instance": "Create, inspect and delete instances.",
        "instances": "List instances; the same as 'aenv instance list'.",
        "service": "Run environments as services: replicas behind one URL.",
        "mcp": "Connect desktop programs that speak MCP to environments.",
        "pool": "Keep instances ready before they are needed.",
        "ps": "Show running instances and what they use.",
        "top": "Watch instances: their CPU, memory and calls.",
    },
    "evaluate": {
        "tasks": "List and show the tasks of environments.",
        "rollout": "Run an agent over tasks and samples, and record every episode.",
        "synth": "Make tasks for an environment, and check them.",
        "bench": "Run agents on benchmarks.",
        "trajectory": "Look at recorded episodes, replay and export them.",
    },
    "operate": {
        "serve": "Serve instances of environments to others.",
        "console": "Show a platform in a web browser.",
        "cluster": "Check a Kubernetes cluster, and show what runs in it.",
        "hub": "Serve and maintain a hub.",
        "local": "Show and stop the local platforms of this machine.",
        "base": "Add, list and remove base systems for instances.",
        "cache": "Show and remove what is kept on disk to be used again.",
    },
    "setup": {
        "doctor": "Check what this machine can do, and what is missing.",
        "config": "Show and change your settings.",
        "version": "Show the version of aenv.",
        "completion": "Print a shell completion script.",
    },
}
"""Group to commands with their short help, so that help imports no command.

The code of a command is ``aenv.cli.commands.<group>.<name>``; ``--help`` lists the groups in this order.
"""

COMMANDS = {name: group for group, commands in GROUPS.items() for name in commands}
"""Command to its group."""

INTERRUPTED = 130


class LazyGroup(CommandGroup):
    """The commands of ``aenv``. It imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"aenv.cli.commands.{COMMANDS[cmd_name]}.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group.capitalize()):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the full traceback of an error.")
@click.option("-v", "--verbose", is_flag=True, help="Print more details.")
@click.version_option(__version__, message="%(version)s")
@click.pass_obj
def cli(global_options: GlobalOptions, debug: bool, verbose: bool) -> None:
    """Everything as environment: create, run and test environments for agents."""
    global_options.debug, global_options.verbose = debug, verbose
    take_over()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. Without ``argv`` it is the command of this process, which then ends."""
    global_options = GlobalOptions()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            result = cli.main(argv, prog_name="aenv", standalone_mode=False, obj=global_options, color=color())
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _interrupted(ends=argv is None)
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C, but not at a question
            return _interrupted(ends=argv is None)
        note("Aborted: nothing was changed. Pass --yes to run without questions.")
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit, and would complain about the same pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Exception as error:
        return _report(error, global_options)
    return result if isinstance(result, int) else 0


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """Show a warning as one line, without the place in our code that gave it."""
    note(f"Warning: {message}")


def _interrupted(*, ends: bool) -> int:
    """Return the exit code. A process that ends ignores further interrupts: exit handlers would show a traceback."""
    if ends and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return INTERRUPTED


def _report(error: Exception, global_options: GlobalOptions) -> int:
    if global_options.debug:
        note(traceback.format_exc().rstrip())
    if isinstance(error, AEnvError):
        message, hint, code = error.message, error.details.get("hint"), error.exit_code
    elif isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        message, hint, code = f"{error.strerror}{where}", None, 1
    else:
        message, hint, code = f"unexpected {type(error).__name__}: {error}", None, 1
        if not global_options.debug:
            hint = "This is a bug in aenv. See where it happens with: aenv --debug <command>"
    lines = message.splitlines() or [""]
    note(click.style("Error:", fg="red", bold=True) + f" {lines[0]}")
    for line in lines[1:]:
        note(f"       {line}")
    if hint:
        note(f"Hint: {hint}")
    return code
