"""The runtime inside a forked sandbox: everything is imported already, the door is locked, the socket listens."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv.core.logging import setup_logging
from aenv.errors import AEnvError
from aenv.isolation import linux
from aenv.isolation.forkable import VariablesRead
from aenv.runtime import rehearsal
from aenv.runtime.catalog import Catalog
from aenv.runtime.http import HttpServer
from aenv.runtime.loader import load
from aenv.runtime.orphans import Orphans
from aenv.runtime.serve import BREATH, ServeOptions, serve_until_stopped

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


Report = Callable[[dict[str, Any]], None]
Serve = Callable[[socket.socket, dict[str, Any], Report], int]


def serve(listener: socket.socket, parameters: dict[str, Any], report: Report) -> int:
    """Load the author's code with these parameters, say whether it worked, serve until the end."""
    _reseed(parameters)
    orphans = Orphans()
    orphans.watch()
    catalog = _load(parameters, report)
    return _serve(catalog, orphans, listener, parameters, report) if catalog is not None else 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """An environment that is loaded."""

    resume: Serve
    """Serves it, in any fork of this process, with parameters that may differ in what was not read."""
    reads: list[str] | None
    """The variables that loading it depended on; None: it may have been all of them."""


def prepare(parameters: dict[str, Any], report: Report) -> Prepared | None:
    """Load the author's code with these parameters."""
    orphans = Orphans()
    orphans.watch()
    read = VariablesRead()
    catalog = _load(parameters, report, read)
    if catalog is None:
        return None
    rehearsal.of(catalog)

    def resume(listener: socket.socket, own: dict[str, Any], report: Report) -> int:
        os.chdir(own["directory"])
        _set_variables(parameters["variables"], own["variables"])
        _reseed(own)
        return _serve(catalog, orphans, listener, own, report)

    return Prepared(resume, read.names)


def _load(
    parameters: dict[str, Any], report: Report, watch: AbstractContextManager[object] | None = None
) -> Catalog | None:
    _settle_in(parameters)
    try:
        with watch or nullcontext():
            return Catalog(load(Path(parameters["path"])))
    except AEnvError as error:
        report({"error": error.message, "code": error.code})
        return None


def _serve(
    catalog: Catalog, orphans: Orphans, listener: socket.socket, parameters: dict[str, Any], report: Report
) -> int:
    linux.set_dumpable(False)  # else any program that a tool starts can read this memory, and write to it
    path, token = Path(parameters["path"]), parameters["token"]
    settle = _settle if parameters["spare"] else None
    options = ServeOptions(path, name=parameters["name"], token=token, sandboxed=True, settle=settle)

    ready = {"ready": True, "healthy": not catalog.health}

    async def settled(server: HttpServer) -> None:
        asyncio.get_running_loop().call_later(BREATH, orphans.reap_from_now_on)
        if parameters["spare"]:  # nobody has asked for it yet, so there is time
            await rehearsal.before_the_first_call(server, catalog, token)
            report(ready)

    if not parameters["spare"]:
        report(ready)  # who connects now waits in the listener's queue, for less time than it takes to come here
    return asyncio.run(serve_until_stopped(options, catalog, listener, settled))


def _settle_in(parameters: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update({"PATH": PATH, "HOME": "/home/env", "USER": "env", "LANG": "C.UTF-8", "TMPDIR": "/tmp"})
    os.environ.update(parameters["variables"])
    time.tzset()
    sys.argv = [parameters["path"], *parameters["arguments"]]
    os.chdir(parameters["directory"])
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    setup_logging(logging.StreamHandler(sys.stderr), "INFO")


def _set_variables(before: dict[str, str], now: dict[str, str]) -> None:
    """What this one has and the one before has not. What the author's code has set itself stays."""
    os.environ.update({name: value for name, value in now.items() if before.get(name) != value})


def _settle(variables: dict[str, str]) -> None:
    """This instance was made ahead, without variables; these are those of who is to have it."""
    os.environ.update(variables)
    _reseed({"variables": variables})


def _reseed(parameters: dict[str, Any]) -> None:
    """Forked from one parent, every sandbox would otherwise draw the same numbers. Who wants that sets AENV_SEED."""
    seed = parameters["variables"].get("AENV_SEED")
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(random.Random(seed).getrandbits(32) if seed else int.from_bytes(os.urandom(4), "little"))


def warm() -> None:
    """Import and use all that serving needs, so that no sandbox does it for the first time."""
    rehearsal.for_all()
    rehearsal.for_mcp()


def warm_without_mcp() -> None:
    """The same for sandboxes that no MCP client is expected at: half the memory, and faster to fork."""
    rehearsal.for_all()
