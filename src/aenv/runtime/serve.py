"""Load an environment and serve it until a signal to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aenv._version import __version__
from aenv.authoring import private_files
from aenv.errors import LoadError, UsageError
from aenv.http.server import HttpServer
from aenv.isolation.files import private_folder
from aenv.isolation.files.rootfs import PROJECT
from aenv.isolation.forking import cpython_internals
from aenv.runtime.app import App
from aenv.runtime.calls.endpoints import EndpointCatalog
from aenv.runtime.imports import Imports
from aenv.runtime.loader import load
from aenv.runtime.mcp import McpEndpoint
from aenv.runtime.sandbox_routes import SandboxRoutes, takes_any_body
from aenv.schema.exit_codes import STOPPED_BY_SIGNAL

log = logging.getLogger("aenv.runtime")

_STOPPING = (signal.SIGTERM, signal.SIGINT)
MAX_BODY = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to serve one environment."""

    path: Path
    host: str = "127.0.0.1"
    port: int = 8081
    uds: str | None = None
    """A unix socket to listen on, in place of host and port."""
    name: str = "aenv-server"
    """Name of the server in MCP, and after an ``@`` its version."""
    token: str | None = None
    no_auth: bool = False
    """Serve beyond loopback without a token."""
    refuse_web_pages: bool = False
    """Without a token, refuse requests of web pages that are not of this machine, also beyond loopback."""
    snapshot: str | None = None
    """In a sandbox: where the project is mounted a second time, read-only, to import its modules from."""
    withheld: str | None = None
    """In a sandbox: a folder with the files of the project's ``private/``, to read and remove; "": there are none.
    None: they are in the project, as outside of a sandbox."""
    sandboxed: bool = False
    """Serve commands and files to callers with the token: they reach nothing but the sandbox."""
    max_body: int = MAX_BODY
    grace: float = 10.0
    """Seconds for calls to finish after SIGTERM."""


@dataclass(frozen=True, slots=True)
class RuntimeReady:
    """The server listens."""

    url: str
    catalog: EndpointCatalog


def serve(options: ServeOptions, on_ready: Callable[[RuntimeReady], None] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    Raises:
        UsageError: the address is open to others and there is no token.
        LoadError: the author's code cannot be imported.
    """
    check_address(options)
    if options.withheld is not None:
        _take_private(options.withheld)
    imports = Imports(PROJECT, options.snapshot) if options.snapshot else None
    catalog = EndpointCatalog(load(options.path, imports))
    catalog.check()
    return serve_catalog(options, catalog, on_ready)


def _take_private(folder: str) -> None:
    """Read the private files into memory, and remove them, before any of the environment's code runs."""
    try:
        private_files.hold(private_folder.read(folder) if folder else {})
    except private_folder.TooLargeError as error:
        raise LoadError(str(error)) from None
    if folder:
        shutil.rmtree(folder)


def serve_catalog(
    options: ServeOptions, catalog: EndpointCatalog, on_ready: Callable[[RuntimeReady], None] | None = None
) -> int:
    """Serve an environment that is loaded already."""
    return asyncio.run(_serve(options, catalog, on_ready))


async def _serve(
    options: ServeOptions, catalog: EndpointCatalog, on_ready: Callable[[RuntimeReady], None] | None
) -> int:
    service = EnvServer(options, catalog)
    url = await _listen(service.server, options)
    service.handle_signals()
    if on_ready is not None:
        on_ready(RuntimeReady(url, catalog))
    return await service.until_stopped()


class EnvServer:
    """The HTTP server of an environment, constructed; it does not listen yet."""

    def __init__(self, options: ServeOptions, catalog: EndpointCatalog) -> None:
        inside = SandboxRoutes(catalog.workers) if options.sandboxed else None
        only_loopback = options.uds is None and is_loopback(options.host)
        name, _, version = options.name.partition("@")
        self._mcp = McpEndpoint(catalog, name=name, version=version or __version__, max_body=options.max_body)
        self.app = App(
            catalog,
            self._mcp,
            token=options.token,
            only_loopback=only_loopback,
            no_pages=options.refuse_web_pages,
            inside=inside,
        )
        unbounded = takes_any_body if inside is not None else None
        self.server = HttpServer(self.app, max_body=options.max_body, prompt=lambda request: True, unbounded=unbounded)
        self._catalog = catalog
        self._grace = options.grace
        self._exit_code = STOPPED_BY_SIGNAL if options.snapshot else 0
        self._signals = _Signals()

    def handle_signals(self) -> None:
        """Handle signals from now on: the first SIGTERM or SIGINT stops gracefully, the second at once."""
        self._signals.listen()

    async def until_stopped(self) -> int:
        """Serve until a signal to stop, then until running calls have ended; return the exit code."""
        signals = self._signals
        await signals.stop.wait()
        log.info("stopping; running calls have %g s; a second signal (Ctrl-C) stops at once", self._grace)
        closing = asyncio.create_task(self.server.close(self._grace))
        hurrying = asyncio.create_task(signals.hurry.wait())
        await asyncio.wait({closing, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not closing.done():
            closing.cancel()
        elif not closing.result():
            log.warning("some calls did not finish in time")
        await self.close()
        signals.ignore()
        return self._exit_code

    async def close(self, grace: float = 0.0) -> None:
        """Give running calls this many seconds to finish, and close everything."""
        await self.server.close(grace)
        await self._mcp.close()
        self._catalog.workers.close()


class _Signals:
    """SIGTERM and SIGINT: the first stops gracefully, the second at once."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def listen(self) -> None:
        """Install the handlers, in the running loop."""
        for number in _STOPPING:
            self._loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()

    def ignore(self) -> None:
        """Ignore further signals: one during the exit must not change the exit code."""
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)
            # The loop must not reset it, now or when it is closed: a signal could then end the process for a moment.
            if cpython_internals.is_tested():
                getattr(self._loop, "_signal_handlers", {}).pop(number, None)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(options: ServeOptions) -> None:
    """Raise UsageError if other machines can reach the address and no token is required."""
    if options.uds or options.token or options.no_auth or is_loopback(options.host):
        return
    raise UsageError(
        f"{options.host} can be reached from other machines, and there is no token: "
        "set AENV_TOKEN (callers then send it as a bearer token), or pass --no-auth to allow it"
    )


async def _listen(server: HttpServer, options: ServeOptions) -> str:
    """Start listening; return the URL."""
    try:
        return await server.open(options.host, options.port, options.uds)
    except OSError as error:
        where = options.uds or f"{options.host}:{options.port}"
        raise UsageError(
            f"cannot listen on {where}: {error.strerror or error}; choose another port with --port"
        ) from error
