"""``aenv serve``: a platform for many users over TCP, with tokens, quotas and records that outlive the process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from pydantic_core import to_json

from aenv import config
from aenv.errors import AEnvError, NotFound, UsageError
from aenv.http.messages import Answer, Handler, Request, Response
from aenv.http.server import HttpServer
from aenv.isolation.limits.cgroups import raise_open_files_limit
from aenv.isolation.limits.delegation import enter_delegated_group
from aenv.platform.access.audit_log import AuditLog
from aenv.platform.access.platform_tokens import Authenticator, PlatformTokens
from aenv.platform.access.tls import ServerAddress, Tls
from aenv.platform.access.token_routes import token_routes
from aenv.platform.app import PlatformApp, takes_any_body
from aenv.platform.gateway.gateway import Gateway
from aenv.platform.gateway.peers import Peers, reached_at
from aenv.platform.gateway.ports import Ports, signing_key
from aenv.platform.instances.ended import EndedInstances
from aenv.platform.instances.env_sources import OpenHub, Sources
from aenv.platform.instances.ledger import Ledger, ServerEntry
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.operations import process_metrics
from aenv.platform.operations.engine_factory import capabilities_of, create_engine
from aenv.platform.operations.metrics_routes import listen
from aenv.platform.operations.readiness import Readiness
from aenv.platform.operations.request_log import RequestLog
from aenv.platform.operations.settings import ServeSettings
from aenv.platform.operations.state_directory import StateDirectory
from aenv.platform.request_context import refusal
from aenv.platform.services.balancer import Balancer
from aenv.platform.services.service_routes import service_routes
from aenv.platform.services.services import Services
from aenv.schema import paths
from aenv.schema.instances import HubAccess
from aenv.storage.open_url import data_folder, open_store
from aenv.tracing import spans
from aenv.tracing.logging import getLogger

log = getLogger("serve")

MAX_BODY = 64 * 1024 * 1024
STREAM_OVER = 64 * 1024
SWEEP_SECONDS = 2.0

EmbeddedHub = Callable[[Request], Awaitable[Response]]
OpenEmbeddedHub = Callable[[Authenticator], AbstractAsyncContextManager[EmbeddedHub]]
"""Opens the hub that is served by the same process."""


@dataclass(frozen=True, slots=True)
class PlatformReady:
    """Addresses of a server that has started to listen."""

    url: str
    """URL of the control plane."""
    data_url: str
    auth: bool
    callers: str
    """Description of who may use it."""
    first_token: str | None
    """Administrator token of a platform that never had one. It is shown only now."""


def serve(
    settings: ServeSettings,
    *,
    open_hub: OpenHub,
    open_embedded_hub: OpenEmbeddedHub | None,
    on_ready: Callable[[PlatformReady], None],
) -> int:
    """Serve until SIGTERM or SIGINT. SIGUSR2 stops the server, too, but leaves instances running.

    Returns the exit code of the process.
    """
    raise_open_files_limit()
    enter_delegated_group()
    return asyncio.run(_serve(settings, open_hub, open_embedded_hub, on_ready))


async def _serve(
    settings: ServeSettings,
    open_hub: OpenHub,
    open_embedded_hub: OpenEmbeddedHub | None,
    on_ready: Callable[[PlatformReady], None],
) -> int:
    stop, hurry, all_ends = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def request_stop(*, ending: bool) -> None:
        if ending:
            all_ends.set()
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: request_stop(ending=True))
    loop.add_signal_handler(signal.SIGUSR2, lambda: request_stop(ending=False))

    def at_the_end(close: Callable[[], Awaitable[None]], leave: Callable[[], Awaitable[None]]) -> None:
        """Register how a part ends. If this server fails, at its start or later, instances wait for the next one."""
        parts.push_async_callback(lambda: (close if all_ends.is_set() else leave)())

    async with AsyncExitStack() as parts:
        tls = Tls.of(settings)
        patience = settings.adopt_within if capabilities_of(settings.engine).outlives_server else 0.0
        home = await StateDirectory.enter(settings.folder, settings.store_url, patience)
        at_the_end(home.close, home.leave)
        store = open_store(settings.store_url)
        parts.push_async_callback(store.close)
        tokens = PlatformTokens(store)
        authenticator = Authenticator(
            tokens if settings.with_auth else None,
            settings.limits.allowance,
            only_loopback=not settings.open_to_others,
        )
        ledger = Ledger(store, server=ServerEntry.own(home.id, patience))
        if home.fd_holder is not None:
            home.fd_holder.on_begun = ledger.set_fd_holder
            ledger.set_fd_holder(home.fd_holder.pid)
        cleared = await ledger.open()
        at_the_end(ledger.close, lambda: ledger.close(hand_over=True))
        if cleared:
            log.warning("%d instances of other servers ended with their servers", cleared)
        access = HubAccess(
            url=settings.hub,
            token=settings.hub_token,
            data=str(data_folder()),
            cache=str(config.cache_folder()),
        )
        sources = Sources(open_hub, only_hub=access)
        parts.push_async_callback(sources.close)
        engine = create_engine(settings.engine, home.runtime / "instances", settings.engine_options(home.runtime.name))
        at_the_end(engine.close, engine.leave)
        instances = Instances(
            engine, sources, direct=False, ledger=ledger, capacity=settings.capacity, ended=EndedInstances(store)
        )
        at_the_end(instances.close, instances.hand_over)
        adopted = await instances.adopt(home.fd_holder)
        if adopted:
            log.info("adopted %d instances of the previous server", adopted)
        peers = None
        if settings.is_shared:
            peers = Peers(ledger)
            parts.callback(peers.close)
        ports = Ports(await signing_key(store), public_url=settings.public_url, prefix=settings.prefix, tls=bool(tls))
        gateway = Gateway(instances, authenticator, peers, ports)
        parts.callback(gateway.close)
        services = Services(instances, sources, ledger, settings.folder / "storage", grace=settings.grace, peers=peers)
        gateway.services = Balancer(services, gateway, instances, authenticator)
        audit = AuditLog(settings.audit_file)
        parts.callback(audit.close)
        embedded_hub = None
        if open_embedded_hub is not None:
            hub = await parts.enter_async_context(open_embedded_hub(authenticator))
            embedded_hub = _clearing_cache(hub, sources)
        app = PlatformApp(
            instances,
            authenticator=authenticator,
            gateway=gateway,
            audit=audit,
            fallback=embedded_hub,
            peers=peers,
            ports=ports,
            more=[*token_routes(tokens, authenticator), *service_routes(services, ports.base)],
        )
        process_metrics.watch(instances.metrics)
        folders = [home.runtime, settings.folder, config.cache_folder()]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        ready = Readiness(engine, store, creates=instances.creates, folders=folders)
        parts.push_async_callback(ready.close)
        spans.begin("aenv-platform")
        gc.freeze()  # start-up objects live as long as the process: exclude them from collections
        planes = [ready.wrap(RequestLog(plane, level=logging.INFO)) for plane in (app, _data_plane(gateway))]
        control, data = (
            HttpServer(
                _without_prefix(settings.prefix, plane),
                max_body=MAX_BODY,
                stream_over=STREAM_OVER,
                unbounded=_unbounded(settings.prefix),
            )
            for plane in planes
        )
        url = data_url = await _listen(control, settings, settings.port, "--port", tls)
        if not settings.one_port:
            data_url = await _listen(data, settings, settings.data_port, "--data-port", tls)
        servers = [control, data]
        if settings.metrics_port is not None:
            scraped, metrics_url = await listen(instances.metrics, settings.metrics_port)
            servers.append(scraped)
            log.info("metrics are at %s, without a token", metrics_url)
        address = ServerAddress(
            settings.advertise or reached_at(url, settings.store_url), ledger, tls, bool(settings.advertise)
        )
        await address.publish()
        loop.add_signal_handler(signal.SIGHUP, address.reload_certificate)
        if settings.open_to_others and not settings.with_auth:
            log.warning("no token is needed (--no-auth): %s may run code here", settings.who_may_call)
        first = await tokens.first() if settings.with_auth else None
        resumed = await services.open()
        at_the_end(services.close, lambda: services.close(hand_over=True))
        if resumed:
            log.info("resumed %d services", resumed)
        sweeping = asyncio.create_task(_sweep(instances))
        on_ready(PlatformReady(url, data_url, settings.with_auth, settings.who_may_call, first))
        await stop.wait()
        ready.draining = True
        log.info("stopping; open requests have %g s to finish", settings.grace)
        await _close(servers, settings.grace, hurry)
        sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping
    return 0


def _clearing_cache(hub: EmbeddedHub, sources: Sources) -> EmbeddedHub:
    """Return a handler that clears cached sources after a change in the hub, such as a revoked grant."""

    async def answer(request: Request) -> Response:
        changes = request.method not in ("GET", "HEAD")
        try:
            return await hub(request)
        finally:
            if changes:
                sources.forget()

    return answer


def _data_plane(gateway: Gateway) -> Handler:
    async def answer(request: Request) -> Answer:
        try:
            if Gateway.wants(request):
                return await gateway(request)
            if request.path == paths.HEALTH:
                return Response(200, to_json({"status": "healthy", "message": "MCP Gateway is running"}))
            hint = f"Name one in a header, {paths.INSTANCE_HEADER}: ID, or in the path, {paths.INSTANCE_PATH}/ID/mcp"
            raise NotFound("no instance named", details={"hint": hint})
        except AEnvError as error:
            return refusal(error)

    return answer


def _without_prefix(prefix: str, handler: Handler) -> Handler:
    """Return a handler that also accepts paths with the prefix, as a proxy in front may leave it on."""
    if not prefix:
        return handler
    start, raw = f"{prefix}/", prefix.encode()

    async def answer(request: Request) -> Answer:
        if request.path.startswith(start) and request.target.startswith(raw + b"/"):
            request.path, request.target = request.path[len(prefix) :], request.target[len(raw) :]
        return await handler(request)

    return answer


def _unbounded(prefix: str) -> Callable[[Request], bool]:
    def takes_any(request: Request) -> bool:
        path = request.path
        try:
            request.path = path.removeprefix(prefix)
            return takes_any_body(request)
        finally:
            request.path = path

    return takes_any


async def _listen(server: HttpServer, settings: ServeSettings, port: int, option: str, tls: Tls | None) -> str:
    try:
        listener = await server.listen(host=settings.host, port=port, tls=tls.context if tls else None)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {settings.host}:{port}: {error.strerror or error}",
            {"hint": f"Choose another port with {option}."},
        ) from error
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "https" if tls else "http"
    return f"{scheme}://{host}:{listener.sockets[0].getsockname()[1]}{settings.prefix}"


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
            log.exception("sweeping instances failed")
