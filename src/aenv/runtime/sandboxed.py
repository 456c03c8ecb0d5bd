"""The runtime inside a sandbox, which has given up its rights already: load the environment's code, then serve it.

`prepare` runs in preloaded parents, whose forks go on in the middle of `PreparedRuntime.serve`; `serve` runs in
sandboxes that load the code themselves. See docs/design/instance-creation.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from aenv.authoring import private_files
from aenv.errors import AEnvError
from aenv.http import handed_connections
from aenv.isolation.files import private_folder
from aenv.isolation.forking.forkable import ForkWatch, VariablesRead
from aenv.isolation.kernel import linux
from aenv.runtime import warm_up
from aenv.runtime.calls.endpoints import EndpointCatalog
from aenv.runtime.forking.forked_loop import ForkedLoop
from aenv.runtime.forking.live_fork import LiveFork
from aenv.runtime.imports import Imports
from aenv.runtime.loader import load
from aenv.runtime.orphans import Orphans
from aenv.runtime.protection import ignore_signals_from_inside
from aenv.runtime.serve import EnvServer, ServeOptions
from aenv.tracing.logging import setup_logging

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


BREATH = 0.02
"""Seconds in which a new sandbox does nothing but answer: its caller has a first call to make."""

FOR_IMPORTS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Variables that are set while packages are imported. Without them ``import numpy`` starts threads, and a process with
threads cannot be forked; ``import litellm`` sends a request to a server."""

Report = Callable[[dict[str, Any] | bytes], None]
Begin = Callable[[], tuple[socket.socket, dict[str, Any]]]
"""Returns where to listen, and the instance's parameters. In a preloaded parent it returns in forks only."""


def serve(listener: socket.socket, parameters_json: bytes, report: Report) -> int:
    """Load the environment's code, report whether that worked, and serve until the end; return the exit code."""
    parameters = from_json(parameters_json)
    _reseed(parameters["variables"])
    orphans = Orphans(plain=parameters["plain"])
    orphans.watch()
    catalog = _load(parameters, report)
    if catalog is None:
        return 1
    return asyncio.run(_serve(catalog, orphans, parameters, lambda: (listener, parameters), report))


@dataclass(frozen=True, slots=True)
class PreparedRuntime:
    """An environment that is loaded, in a preloaded parent."""

    serve: Callable[[Callable[[], tuple[socket.socket, bytes]]], int]
    """Serves it in forks of this process. Its argument forks, and returns in the fork, with the socket to listen on and
    the fork's parameters as JSON. These may differ in variables that the import did not read."""
    reads: list[str] | None
    """The variables that the import read; None: maybe all of them."""


def prepare(parameters_json: bytes, report: Report) -> PreparedRuntime | None:
    """Load the environment's code, for forks of this process to serve. None: it reported an error."""
    parameters = from_json(parameters_json)
    if parameters["packages_only"]:
        return _prepare_packages(parameters, report)
    orphans = Orphans(plain=parameters["plain"])
    orphans.watch()
    read = VariablesRead(plain=parameters["plain"])
    catalog = _load(parameters, report, read)
    if catalog is None:
        return None
    warm_up.of(catalog)

    def become_instance(listener: socket.socket, own_json: bytes) -> tuple[socket.socket, dict[str, Any]]:
        own = from_json(own_json)
        os.chdir(own["directory"])
        _set_variables(parameters["variables"], own["variables"])
        return listener, own

    def serve(fork: Callable[[], tuple[socket.socket, bytes]]) -> int:
        loop = ForkedLoop()

        def begin() -> tuple[socket.socket, dict[str, Any]]:
            loop.pause()
            forked = fork()
            loop.resume()
            return become_instance(*forked)

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(_serve(catalog, orphans, parameters, begin, report))

    def serve_plainly(fork: Callable[[], tuple[socket.socket, bytes]]) -> int:
        forked = fork()
        return asyncio.run(_serve(catalog, orphans, parameters, lambda: become_instance(*forked), report))

    return PreparedRuntime(serve_plainly if parameters["plain"] else serve, read.names)


def _prepare_packages(parameters: dict[str, Any], report: Report) -> PreparedRuntime:
    """Import the packages that the project uses. Forks load the project's code themselves."""
    _set_up_process({**parameters, "variables": {}})
    _import_packages(parameters["packages"])

    def serve_loading(fork: Callable[[], tuple[socket.socket, bytes]]) -> int:
        return serve(*fork(), report)

    return PreparedRuntime(serve_loading, [])


def _import_packages(names: list[str]) -> None:
    """Import third-party modules before the code that uses them. Errors are left to that code to raise."""
    before = {name: os.environ.get(name) for name in FOR_IMPORTS}
    os.environ.update(FOR_IMPORTS)
    for name in names:
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    if ForkWatch.current is not None:
        ForkWatch.current.packages_are_imported()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _load(
    parameters: dict[str, Any], report: Report, watch: AbstractContextManager[object] | None = None
) -> EndpointCatalog | None:
    _set_up_process(parameters)
    private_files.hold(private_folder.files)
    _import_packages(parameters["packages"])
    try:
        with watch or nullcontext():
            catalog = EndpointCatalog(
                load(Path(parameters["path"]), Imports(parameters["directory"], parameters["snapshot"]))
            )
    except AEnvError as error:
        report({"error": error.message, "code": error.code})
        return None
    ignore_signals_from_inside()
    return catalog


async def _serve(
    catalog: EndpointCatalog, orphans: Orphans, parameters: dict[str, Any], begin: Begin, report: Report
) -> int:
    """Construct the server, call `begin`, then answer. What comes before `begin` may run in the preloaded parent."""
    service = EnvServer(ServeOptions(Path(parameters["path"]), name=parameters["name"], sandboxed=True), catalog)
    ready = b'{"ready": true, "healthy": %s}' % (b"false" if catalog.health else b"true")
    loop = asyncio.get_running_loop()

    def after_first_call() -> None:
        if not parameters["plain"]:
            threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # the parent's had another
        orphans.reap_from_now_on()

    listener, own = begin()
    orphans.victims.begin()
    handed_connections.expect()
    linux.set_dumpable(False)  # or programs that a tool starts could read and change this memory
    token = own["token"]
    if own["forkable"]:
        live = LiveFork(service, catalog, orphans, lambda fork: _become_fork(own["variables"], fork))
        service.server.handler = live
    if own["pooled"]:  # there is no request yet, so there is time
        service.app.lock(token, _take_variables)
        service.server.accept_on(listener)
        await warm_up.before_the_first_call(service.server, catalog, token)
    else:
        service.app.lock(token)
        service.server.accept_on(listener)
    report(ready)
    loop.call_later(BREATH, after_first_call)
    return await service.until_stopped()


def _become_fork(before: dict[str, str], parameters: dict[str, Any]) -> None:
    """Set the variables of a live fork. Those of the instance that it does not have are removed."""
    now = parameters["variables"]
    for name in before.keys() - now.keys():
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in now.items() if before.get(name) != value})
    before.clear()
    before.update(now)
    _reseed(now)


def _set_up_process(parameters: dict[str, Any]) -> None:
    """Set variables, arguments, working directory, output and logging as the environment's code expects them."""
    os.environ.clear()
    places = {"HOME": parameters.get("home", "/home/env"), "TMPDIR": parameters.get("temporary", "/tmp")}
    os.environ.update({"PATH": PATH, "USER": "env", "LANG": "C.UTF-8", **places})
    os.environ.update(parameters["variables"])
    time.tzset()
    sys.argv = [parameters["path"], *parameters["arguments"]]
    os.chdir(parameters["directory"])
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    setup_logging(logging.StreamHandler(sys.stderr), "INFO")


def _set_variables(before: dict[str, str], now: dict[str, str]) -> None:
    """Set the variables of a fork that its parent was not loaded with. Those that the import set stay as they are."""
    os.environ.update({name: value for name, value in now.items() if before.get(name) != value})
    _reseed(now)


def _take_variables(variables: dict[str, str]) -> None:
    """Set the variables of the request that a pooled sandbox is given to. It was made without any."""
    os.environ.update(variables)
    _reseed(variables)


def _reseed(variables: dict[str, str]) -> None:
    """Seed random numbers anew: all forks of a parent would draw the same ones. ``AENV_SEED`` makes them the same."""
    seed = variables.get("AENV_SEED")
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(random.Random(seed).getrandbits(32) if seed else int.from_bytes(os.urandom(4), "little"))


def warm() -> None:
    """Import and use all that serving needs, in the zygote, so that no sandbox does it for the first time."""
    warm_up.for_all()
    warm_up.for_mcp()


def warm_without_mcp() -> None:
    """Do the same without the MCP SDK: half the memory, and faster to fork."""
    warm_up.for_all()


def rehearse() -> None:
    """Serve one call in a pre-forked sandbox: the pages that this writes to are copied before there is a request."""
    warm_up.once()
