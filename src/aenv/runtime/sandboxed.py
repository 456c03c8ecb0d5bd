"""The runtime inside a forked sandbox: everything is imported already, the door is locked, the socket listens."""

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
from aenv.isolation.files import private_folder
from aenv.isolation.forking.forkable import VariablesRead, Watch
from aenv.isolation.kernel import linux
from aenv.runtime import warm_up
from aenv.runtime.endpoints import EndpointCatalog
from aenv.runtime.forked_loop import ForkedLoop
from aenv.runtime.imports import Imports
from aenv.runtime.loader import load
from aenv.runtime.orphans import Orphans
from aenv.runtime.protection import ignore_signals_from_inside
from aenv.runtime.serve import EnvServer, ServeOptions
from aenv.tracing.logging import setup_logging

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


BREATH = 0.02
"""Seconds in which a new sandbox does nothing but answer: who asked for it has a first call to make."""

FOR_IMPORTS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Set while packages are imported: else ``import numpy`` starts threads, and a process with threads cannot be forked;
and ``import litellm`` asks a server."""

Report = Callable[[dict[str, Any] | bytes], None]
Begin = Callable[[], tuple[socket.socket, dict[str, Any]]]
"""Where to listen, and the parameters, from the moment when both are known."""


def serve(listener: socket.socket, told: bytes, report: Report) -> int:
    """Load the author's code with these parameters, say whether it worked, serve until the end."""
    parameters = from_json(told)
    _reseed(parameters["variables"])
    orphans = Orphans()
    orphans.watch()
    catalog = _load(parameters, report)
    if catalog is None:
        return 1
    return asyncio.run(_serve(catalog, orphans, parameters, lambda: (listener, parameters), report))


@dataclass(frozen=True, slots=True)
class PreparedRuntime:
    """An environment that is loaded."""

    serve: Callable[[Callable[[], tuple[socket.socket, bytes]]], int]
    """Serves it in forks of this process. It is given what forks, and says in the fork where to listen, and that fork's
    parameters: they may differ in what was not read."""
    reads: list[str] | None
    """The variables that loading it depended on; None: it may have been all of them."""


def prepare(told: bytes, report: Report) -> PreparedRuntime | None:
    """Load the author's code with these parameters."""
    parameters = from_json(told)
    if parameters["packages_only"]:
        return _prepare_packages(parameters, report)
    orphans = Orphans()
    orphans.watch()
    read = VariablesRead()
    catalog = _load(parameters, report, read)
    if catalog is None:
        return None
    warm_up.of(catalog)

    def serve(fork: Callable[[], tuple[socket.socket, bytes]]) -> int:
        loop = ForkedLoop()

        def begin() -> tuple[socket.socket, dict[str, Any]]:
            loop.pause()
            listener, told = fork()
            loop.begin()
            own = from_json(told)
            os.chdir(own["directory"])
            _set_variables(parameters["variables"], own["variables"])
            return listener, own

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(_serve(catalog, orphans, parameters, begin, report))

    return PreparedRuntime(serve, read.names)


def _prepare_packages(parameters: dict[str, Any], report: Report) -> PreparedRuntime:
    """Import the packages that the project uses. Forks load the project's code themselves."""
    _settle_in({**parameters, "variables": {}})
    _import_packages(parameters["packages"])

    def serve_loading(fork: Callable[[], tuple[socket.socket, bytes]]) -> int:
        return serve(*fork(), report)

    return PreparedRuntime(serve_loading, [])


def _import_packages(names: list[str]) -> None:
    """Import modules of others, as far as that works, before the code that uses them: it says what is wrong."""
    before = {name: os.environ.get(name) for name in FOR_IMPORTS}
    os.environ.update(FOR_IMPORTS)
    for name in names:
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    if Watch.current is not None:
        Watch.current.packages_are_imported()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _load(
    parameters: dict[str, Any], report: Report, watch: AbstractContextManager[object] | None = None
) -> EndpointCatalog | None:
    _settle_in(parameters)
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
    """What needs not be known before `begin` is made before it: that may be in another process."""
    service = EnvServer(ServeOptions(Path(parameters["path"]), name=parameters["name"], sandboxed=True), catalog)
    ready = b'{"ready": true, "healthy": %s}' % (b"false" if catalog.health else b"true")
    loop = asyncio.get_running_loop()

    def look_after_others() -> None:
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # who forked it had another
        orphans.reap_from_now_on()

    listener, own = begin()
    orphans.victims.begin()
    linux.set_dumpable(False)  # else any program that a tool starts can read this memory, and write to it
    token = own["token"]
    if own["spare"]:  # nobody has asked for it yet, so there is time
        service.app.lock(token, _settle)
        service.server.accept_on(listener)
        await warm_up.before_the_first_call(service.server, catalog, token)
    else:
        service.app.lock(token)
        service.server.accept_on(listener)
    report(ready)
    loop.call_later(BREATH, look_after_others)
    return await service.until_stopped()


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
    """What this fork has and the one before has not. What the author's code has set itself stays."""
    os.environ.update({name: value for name, value in now.items() if before.get(name) != value})
    _reseed(now)


def _settle(variables: dict[str, str]) -> None:
    """This instance was made ahead, without variables; these are those of who is to have it."""
    os.environ.update(variables)
    _reseed(variables)


def _reseed(variables: dict[str, str]) -> None:
    """Forked from one parent, every sandbox would otherwise draw the same numbers. Who wants that sets AENV_SEED."""
    seed = variables.get("AENV_SEED")
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(random.Random(seed).getrandbits(32) if seed else int.from_bytes(os.urandom(4), "little"))


def warm() -> None:
    """Import and use all that serving needs, so that no sandbox does it for the first time."""
    warm_up.for_all()
    warm_up.for_mcp()


def warm_without_mcp() -> None:
    """The same for sandboxes that no MCP client is expected at: half the memory, and faster to fork."""
    warm_up.for_all()


def rehearse() -> None:
    """Serve once more: what that writes to is copied now, and not when somebody waits."""
    warm_up.once()
