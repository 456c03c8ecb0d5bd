"""Options that download a benchmark's data, and what they do: ``--fetch`` and ``--fetch-from URL``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aenv.cli.output import note
from aenv.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from aenv.bench.pinned_data import Checkout, PinnedFile

F = TypeVar("F", bound=Callable[..., Any])


def fetch_options(function: F) -> F:
    """``--fetch`` and ``--fetch-from``, as the argument ``fetch_from``: None without, "" for the original."""
    function = click.option(
        "--fetch",
        "fetch",
        is_flag=True,
        help="Download the benchmark's data at a pinned version, with its hashes checked.",
    )(function)
    return click.option(
        "--fetch-from", "fetch_from", metavar="URL", help="Download it from this mirror; the hashes are checked, too."
    )(function)


def fetched(name: str, fetch: bool, fetch_from: str | None) -> Path | None:
    """Return the folder of a benchmark's data, downloaded if need be; None if that was not asked for."""
    if not fetch and fetch_from is None:
        return None
    from aenv.bench import data_sources as sources
    from aenv.bench.pinned_data import fetch as download

    known: dict[str, Checkout | PinnedFile] = {"tau2": sources.TAU2, "swe": sources.SWE, "terminal": sources.TERMINAL}
    return download(known[name], fetch_from or "", note)


def given_or_fetched(option: str, given: str | None, name: str, fetch: bool, fetch_from: str | None) -> str:
    """Return the value of an option that names the data, or the folder of the downloaded data.

    Raises:
        UsageError: both or neither are given.
    """
    folder = fetched(name, fetch, fetch_from) if not given else None
    if given and (fetch or fetch_from is not None):
        raise UsageError(f"{option} and --fetch name the data twice; use one of them")
    if not given and folder is None:
        raise UsageError(f"no data given: use {option}, or --fetch to download it")
    return given or str(folder)


def install_tau2(checkout: Path) -> None:
    """Install TAU2-Bench from a checkout into this Python, if it is not there yet.

    Raises:
        ConfigError: it cannot be installed; the reasons were printed.
    """
    from importlib.util import find_spec

    from aenv.project.builtin_envs import folder as builtin_folder

    if find_spec("tau2_bench_data") is not None:
        return
    install = builtin_folder() / "tau2-env" / "install.py"
    if subprocess.run([sys.executable, str(install), "--source", str(checkout)], check=False).returncode:
        raise ConfigError("TAU2-Bench could not be installed; the reasons are above")
