"""``aenv serve``: the platform for many, over TCP, with tokens, limits and records that outlive it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import to_json

from aenv import config
from aenv.api.access import Doorkeeper, PlatformTokens
from aenv.api.app import PlatformApp, refusal
from aenv.api.audit import Audit
from aenv.api.engines import ENGINES
from aenv.api.gateway import Gateway
from aenv.api.instances import Instances
from aenv.api.ledger import Ledger
from aenv.api.local import start_janitor
from aenv.api.settings import ServeSettings
from aenv.api.sources import OpenHub, Sources
from aenv.core.logging import getLogger
from aenv.errors import AEnvError, NotFound, UsageError
from aenv.isolation.delegation import enter_own_group
from aenv.runtime.http import HttpServer
from aenv.runtime.messages import Handler, Request, Response, Stream
from aenv.schema import paths
from aenv.schema.instance import HubAccess
from aenv.storage.open import data_folder, open_store

log = getLogger("serve")

MAX_BODY = 64 * 1024 * 1024
STREAM_OVER = 64 * 1024
SWEEP_SECONDS = 2.0

Beside = Callable[[Request], Awaitable[Response]]
OpenBeside = Callable[[Doorkeeper], AbstractAsyncContextManager[Beside]]
"""Opens what is served beside the platform: the hub."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The server listens."""

    url: str
    """Of the control plane."""
    data_url: str
    auth: bool
    first_token: str | None
    """An administrator's, for a platform that never had one: shown now and never again."""


def serve(
    settings: ServeSettings, *, open_hub: OpenHub, open_beside: OpenBeside | None, on_ready: Callable[[Ready], None]
) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code."""
    runtime = Path(tempfile.mkdtemp(prefix="aenv-serve-"))  # short: a unix socket's path has 107 bytes
    enter_own_group()
    janitor = start_janitor(runtime, whole=True)
    try:
        return asyncio.run(_serve(settings, runtime, open_hub, open_beside, on_ready))
    finally:
        janitor.stdin.close() if janitor.stdin else None
        janitor.wait()
        shutil.rmtree(runtime, ignore_errors=True)


async def _serve(
    settings: ServeSettings,
    runtime: Path,
    open_hub: OpenHub,
    open_beside: OpenBeside | None,
    on_ready: Callable[[Ready], None],
) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    async with AsyncExitStack() as parts:
        store = open_store(settings.store_url)
        parts.push_async_callback(store.close)
        tokens = PlatformTokens(store)
        door = Doorkeeper(
            tokens if settings.with_auth else None,
            settings.limits.allowance,
            only_loopback=not settings.open_to_others,
        )
        ledger = Ledger(store)
        cleared = await ledger.open()
        parts.push_async_callback(ledger.close)
        if cleared:
            log.warning("%d instances of a server before this one have ended with it", cleared)
        access = HubAccess(
            url=settings.hub,
            token=settings.hub_token,
            data=str(data_folder()),
            cache=str(config.cache_folder()),
        )
        sources = Sources(open_hub, only=access)
        parts.push_async_callback(sources.close)
        engine = ENGINES[settings.engine](runtime / f"instances-{ledger.server.pid}", settings.pool)
        parts.push_async_callback(engine.close)
        instances = Instances(engine, sources, direct=False, ledger=ledger)
        parts.push_async_callback(instances.close)
        gateway = Gateway(instances, door)
        parts.callback(gateway.close)
        audit = Audit(settings.audit_file)
        parts.callback(audit.close)
        beside = None
        if open_beside is not None:
            beside = await parts.enter_async_context(open_beside(door))
        app = PlatformApp(instances, door=door, gateway=gateway, audit=audit, beside=beside)
        control = HttpServer(_below(settings.prefix, app), max_body=MAX_BODY, stream_over=STREAM_OVER)
        data = HttpServer(_below(settings.prefix, _data_plane(gateway)), max_body=MAX_BODY, stream_over=STREAM_OVER)
        url = data_url = await _listen(control, settings, settings.port, "--port")
        if not settings.one_port:
            data_url = await _listen(data, settings, settings.data_port, "--data-port")
        first = await tokens.first() if settings.with_auth else None
        sweeping = asyncio.create_task(_sweep(instances))
        on_ready(Ready(url, data_url, settings.with_auth, first))
        await stop.wait()
        log.info("stopping; requests under way have %g s", settings.grace)
        await _close([control, data], settings.grace, hurry)
        sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping
    return 0


def _data_plane(gateway: Gateway) -> Handler:
    async def answer(request: Request) -> Response | Stream:
        try:
            if Gateway.wants(request):
                return await gateway(request)
            if request.path == paths.HEALTH:
                return Response(200, to_json({"status": "healthy", "message": "MCP Gateway is running"}))
            hint = f"Say which instance is meant: {paths.INSTANCE_HEADER}: ID, or the path {paths.INSTANCE_PATH}/ID/mcp"
            raise NotFound("no instance is named", details={"hint": hint})
        except AEnvError as error:
            return refusal(error)

    return answer


def _below(prefix: str, handler: Handler) -> Handler:
    """The same, for a proxy that leaves a path before all paths; without it they are there as well."""
    if not prefix:
        return handler
    start, raw = f"{prefix}/", prefix.encode()

    async def answer(request: Request) -> Response | Stream:
        if request.path.startswith(start) and request.target.startswith(raw + b"/"):
            request.path, request.target = request.path[len(prefix) :], request.target[len(raw) :]
        return await handler(request)

    return answer


async def _listen(server: HttpServer, settings: ServeSettings, port: int, option: str) -> str:
    try:
        listener = await server.listen(host=settings.host, port=port)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {settings.host}:{port}: {error.strerror or error}",
            {"hint": f"Choose another port with {option}."},
        ) from error
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.sockets[0].getsockname()[1]}{settings.prefix}"


async def _close(servers: list[HttpServer], grace: float, hurry: asyncio.Event) -> None:
    closing = [asyncio.create_task(server.close(grace)) for server in servers]
    hurrying = asyncio.create_task(hurry.wait())
    closed = asyncio.create_task(_all(closing))
    await asyncio.wait({closed, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    closed.cancel()
    for server, task in zip(servers, closing, strict=True):
        if not task.done():
            task.cancel()
            await server.close(0)


async def _all(tasks: list[asyncio.Task[bool]]) -> None:
    await asyncio.wait(tasks)


async def _sweep(instances: Instances) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await instances.sweep()
        except Exception:
            log.exception("the sweep failed")
