"""``aenv version``: show the version of aenv."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import click

import aenv
from aenv.cli.output import Output, columns, output_option
from aenv.subprocesses import run

Facts = dict[str, str | bool | None]


@click.command(name="version")
@click.option("-s", "--short", is_flag=True, help="Only the version.")
@click.option("-j", "--json", "as_json", is_flag=True, help="The same as --output json.")
@output_option
def command(short: bool, as_json: bool, output: Output) -> None:
    """Show the version of aenv and where it comes from."""
    if short:
        click.echo(aenv.__version__)
        return
    found = facts(Path(aenv.__file__).resolve().parents[2])
    known = [(key.replace("_", " "), str(value)) for key, value in found.items() if value is not None]
    (Output.JSON if as_json else output).show(found, lambda: columns(known, indent=""))


def facts(checkout: Path) -> Facts:
    """Collect version facts, null where unknown. ``checkout``: where a source checkout would be."""
    git = _git_facts(checkout)
    return {
        "version": aenv.__version__,
        "source": "checkout" if git["git_commit"] else "package",
        "build_version": aenv.__version__,
        "build_commit": git["git_commit"],
        "build_date": git["git_date"],
        "build_branch": git["git_branch"],
        "python_version": platform.python_version(),
        "build_host": None,  # host names are private
        **git,
        "platform": platform.platform(),
    }


def _git_facts(checkout: Path) -> Facts:
    facts: Facts = dict.fromkeys(("git_commit", "git_branch", "git_date", "git_describe", "dirty"))
    # A wheel installed inside some other repository must not report that one.
    if not ((checkout / ".git").exists() and (checkout / "src" / "aenv").is_dir()):
        return facts
    head = _git(checkout, "log", "-1", "--format=%H%n%cI")
    if head is None:
        return facts
    facts["git_commit"], facts["git_date"] = head.splitlines()
    facts["git_branch"] = _git(checkout, "symbolic-ref", "--short", "-q", "HEAD")
    facts["git_describe"] = _git(checkout, "describe", "--tags", "--always")
    status = _git(checkout, "status", "--porcelain", "--untracked-files=no", empty=True)
    facts["dirty"] = None if status is None else bool(status)
    return facts


def _git(checkout: Path, *args: str, empty: bool = False) -> str | None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = run(["git", "-C", str(checkout), *args], env={**ours, "GIT_OPTIONAL_LOCKS": "0"}, timeout=5)
    except OSError:  # TimeoutError is one, too
        return None
    if not done.ok:
        return None
    return done.stdout.strip() or ("" if empty else None)
