"""``aenv serve``: a platform for many users over TCP, with tokens, quotas and records that outlive the process."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import to_json

from aenv import config
from aenv.engines.base import Engine
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
from aenv.platform.gateway.peers import Peers, reachable_url
from aenv.platform.gateway.ports import Ports, signing_key
from aenv.platform.instances.ended import EndedInstances
from aenv.platform.instances.ledger import Ledger, ServerEntry
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.instances.machine_capacity import machine_bound
from aenv.platform.instances.requests.datasources import DatasourceRoots
from aenv.platform.instances.requests.env_sources import OpenHub, Sources
from aenv.platform.instances.warm_pools import Pools, pool_routes
from aenv.platform.nested.tunnels import Tunnels
from aenv.platform.operations import process_metrics
from aenv.platform.operations.cache_budget import keep_within_budget
from aenv.platform.operations.engine_factory import capabilities_of, create_engine
from aenv.platform.operations.metrics import Metrics
from aenv.platform.operations.metrics_routes import listen
from aenv.platform.operations.readiness import Readiness
from aenv.platform.operations.request_log import RequestLog
from aenv.platform.operations.settings import ServeSettings
from aenv.platform.operations.state_directory import StateDirectory
from aenv.platform.request_context import refusal
from aenv.platform.rollouts.model_access import ModelAccess
from aenv.platform.rollouts.rollout_jobs import RolloutJobs
from aenv.platform.rollouts.rollout_routes import rollout_routes
from aenv.platform.services.balancer import Balancer
from aenv.platform.services.service_routes import service_routes
from aenv.platform.services.services import Services
from aenv.platform.trajectories.episode_archive import EpisodeArchive
from aenv.platform.trajectories.trajectory_routes import trajectory_routes
from aenv.schema import paths
from aenv.schema.instances import HubAccess
from aenv.storage.base import Store
from aenv.storage.open_url import data_folder, open_blobs, open_store
from aenv.storage.tokens import parts_of
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
    beside: Callable[[Handler], Handler] = lambda handler: handler,
) -> int:
    """Serve until SIGTERM or SIGINT. SIGUSR2 stops the server, too, but leaves instances running.

    ``beside`` adds pages to the handler of the control plane. Returns the exit code of the process.
    """
    if settings.admin_token:
        parts_of(settings.admin_token)  # before anything is started
    raise_open_files_limit()
    enter_delegated_group()
    return asyncio.run(_serve(settings, open_hub, open_embedded_hub, on_ready, beside))


async def _serve(
    settings: ServeSettings,
    open_hub: OpenHub,
    open_embedded_hub: OpenEmbeddedHub | None,
    on_ready: Callable[[PlatformReady], None],
    beside: Callable[[Handler], Handler],
) -> int:
    """Start the parts of the platform one after the other, serve, and end them in reverse order."""
    async with AsyncExitStack() as stack:
        life = _Lifetime(stack)
        tls = Tls.of(settings)
        state = await _open_state(settings, life)
        running = await _start_instances(settings, state, open_hub, life)
        routes = await _build_routes(settings, state, running, open_embedded_hub, tls, life)
        readiness = _readiness(settings, state, running, life)
        process_metrics.watch(running.instances.metrics)
        spans.begin("aenv-platform")
        gc.freeze()  # start-up objects live as long as the process: exclude them from collections
        listening = await _listen_on_all(settings, routes, readiness, running.instances.metrics, tls, beside)
        listening.servers[0].listen_at(str(_own_socket(state)))
        await _announce(settings, state.ledger, listening.url, tls)
        if settings.open_to_others and not settings.with_auth:
            log.warning("no token is needed (--no-auth): %s may run code here", settings.who_may_call)
        first_token = await state.tokens.first(settings.admin_token) if settings.with_auth else None
        await _resume_services(routes.services, life)
        assert routes.rollouts.archiver is not None
        routes.rollouts.archiver.start()
        background = [asyncio.create_task(work) for work in (_sweep(running.instances), keep_within_budget())]
        on_ready(
            PlatformReady(listening.url, listening.data_url, settings.with_auth, settings.who_may_call, first_token)
        )
        await life.stop.wait()
        readiness.draining = True
        await routes.rollouts.close()
        log.info("stopping; open requests have %g s to finish", settings.grace)
        await _close(listening.servers, settings.grace, life.hurry)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
    return 0


class _Lifetime:
    """Signals that stop the server, and the parts to end when it stops."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.stop = asyncio.Event()
        """Set by the first signal."""
        self.hurry = asyncio.Event()
        """Set by the second signal: do not wait for open requests."""
        self._end_instances = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, True)
        loop.add_signal_handler(signal.SIGUSR2, self._on_signal, False)

    def _on_signal(self, end_instances: bool) -> None:
        if end_instances:
            self._end_instances = True
        (self.hurry if self.stop.is_set() else self.stop).set()

    def on_exit(self, close: Callable[[], Awaitable[None]], leave: Callable[[], Awaitable[None]]) -> None:
        """Register how a part ends: with its instances, or leaving them to the next server.

        If this server fails, at its start or later, instances wait for the next one.
        """
        self.stack.push_async_callback(lambda: (close if self._end_instances else leave)())


@dataclass(frozen=True, slots=True)
class _State:
    """Parts that outlive the server: its state directory, the store, and the records in it."""

    directory: StateDirectory
    store: Store
    tokens: PlatformTokens
    authenticator: Authenticator
    ledger: Ledger


async def _open_state(settings: ServeSettings, life: _Lifetime) -> _State:
    patience = settings.adopt_within if capabilities_of(settings.engine).outlives_server else 0.0
    directory = await StateDirectory.enter(settings.folder, settings.store_url, patience)
    life.on_exit(directory.close, directory.leave)
    store = open_store(settings.store_url)
    life.stack.push_async_callback(store.close)
    tokens = PlatformTokens(store)
    authenticator = Authenticator(
        tokens if settings.with_auth else None,
        settings.limits.allowance,
        only_loopback=not settings.open_to_others,
    )
    ledger = Ledger(store, server=ServerEntry.own(directory.id, patience))
    if directory.fd_holder is not None:
        directory.fd_holder.on_started = ledger.set_fd_holder
        ledger.set_fd_holder(directory.fd_holder.pid)
    cleared = await ledger.open()
    life.on_exit(ledger.close, lambda: ledger.close(hand_over=True))
    if cleared:
        log.warning("%d instances of other servers ended with their servers", cleared)
    return _State(directory, store, tokens, authenticator, ledger)


@dataclass(frozen=True, slots=True)
class _Running:
    """The engine and its instances."""

    engine: Engine
    sources: Sources
    instances: Instances


async def _start_instances(settings: ServeSettings, state: _State, open_hub: OpenHub, life: _Lifetime) -> _Running:
    """Create the engine, and adopt the instances that the previous server has left."""
    access = HubAccess(
        url=settings.hub,
        token=settings.hub_token,
        data=str(data_folder()),
        cache=str(config.cache_folder()),
    )
    sources = Sources(open_hub, only_hub=access)
    life.stack.push_async_callback(sources.close)
    runtime = state.directory.runtime
    engine = create_engine(settings.engine, runtime / "instances", settings.engine_options(runtime.name))
    life.on_exit(engine.close, engine.leave)
    ended = EndedInstances(state.store)
    capacity = settings.capacity
    if engine.capabilities.on_this_machine:
        capacity = capacity.bounded_by(machine_bound(held=engine.capabilities.outlives_server))
    advice = "start it with --datasource-root FOLDER"
    instances = Instances(
        engine,
        sources,
        direct=False,
        ledger=state.ledger,
        capacity=capacity,
        ended=ended,
        datasources=DatasourceRoots(settings.datasource_roots, advice),
    )
    life.on_exit(instances.close, instances.hand_over)
    adopted = await instances.adopt(state.directory.fd_holder)
    if adopted:
        log.info("adopted %d instances of the previous server", adopted)
    return _Running(engine, sources, instances)


@dataclass(frozen=True, slots=True)
class _Routes:
    """Handlers of both planes, and the services behind them."""

    app: PlatformApp
    gateway: Gateway
    services: Services
    rollouts: RolloutJobs


async def _build_routes(
    settings: ServeSettings,
    state: _State,
    running: _Running,
    open_embedded_hub: OpenEmbeddedHub | None,
    tls: Tls | None,
    life: _Lifetime,
) -> _Routes:
    instances, authenticator = running.instances, state.authenticator
    peers = None
    if settings.is_shared:
        peers = Peers(state.ledger)
        life.stack.callback(peers.close)
    key = await signing_key(state.store)
    ports = Ports(key, public_url=settings.public_url, prefix=settings.prefix, tls=bool(tls))
    gateway = Gateway(instances, authenticator, peers, ports)
    life.stack.callback(gateway.close)
    storage = settings.folder / "storage"
    services = Services(instances, running.sources, state.ledger, storage, grace=settings.grace, peers=peers)
    gateway.services = Balancer(services, gateway, instances, authenticator)
    audit = AuditLog(settings.audit_file)
    life.stack.callback(audit.close)
    _open_tunnels(instances, gateway, authenticator, audit, life)
    archive = _open_archive(settings, state, life)
    jobs = _rollout_jobs(settings, state, archive)
    assert jobs.archiver is not None
    embedded_hub = None
    if open_embedded_hub is not None:
        hub = await life.stack.enter_async_context(open_embedded_hub(authenticator))
        embedded_hub = _clearing_cache(hub, running.sources)
    app = PlatformApp(
        instances,
        authenticator=authenticator,
        gateway=gateway,
        audit=audit,
        fallback=embedded_hub,
        peers=peers,
        ports=ports,
        more=[
            *token_routes(state.tokens, authenticator),
            *service_routes(services, ports.base),
            *pool_routes(Pools(instances)),
            *rollout_routes(jobs, peers),
            *trajectory_routes(archive, jobs.archiver),
        ],
    )
    return _Routes(app, gateway, services, jobs)


def _open_tunnels(
    instances: Instances, gateway: Gateway, authenticator: Authenticator, audit: AuditLog, life: _Lifetime
) -> None:
    """Serve the platform's API to code in instances, which reach it through a socket in their sandbox."""
    tunnels = Tunnels(
        instances,
        gateway,
        lambda handler: RequestLog(handler, level=logging.INFO),
        refresh=authenticator.refresh,
        audit=audit,
    )
    life.stack.callback(tunnels.close)


def _rollout_jobs(settings: ServeSettings, state: _State, archive: EpisodeArchive) -> RolloutJobs:
    return RolloutJobs(
        settings.folder / "trajectories",
        f"unix:{_own_socket(state)}",
        ModelAccess(settings.model_urls, any_endpoint=not settings.with_auth and not settings.open_to_others),
        archive,
    )


def _open_archive(settings: ServeSettings, state: _State, life: _Lifetime) -> EpisodeArchive:
    if settings.is_shared and not settings.blobs:
        log.warning("trajectories are stored in a folder of this machine; name storage for all servers with --blobs")
    archive = EpisodeArchive(state.store, open_blobs(settings.blobs_url), quota=settings.trajectory_quota_bytes)
    life.stack.push_async_callback(archive.close)
    return archive


def _own_socket(state: _State) -> Path:
    """Path of the socket at which the platform's own rollouts reach it."""
    return state.directory.runtime / "rollouts.sock"


def _readiness(settings: ServeSettings, state: _State, running: _Running, life: _Lifetime) -> Readiness:
    folders = [state.directory.runtime, settings.folder, config.cache_folder()]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    readiness = Readiness(running.engine, state.store, creates=running.instances.creates, folders=folders)
    life.stack.push_async_callback(readiness.close)
    return readiness


@dataclass(frozen=True, slots=True)
class _ListeningServers:
    """Servers of the control plane, of the data plane and of metrics."""

    servers: list[HttpServer]
    url: str
    data_url: str


async def _listen_on_all(
    settings: ServeSettings,
    routes: _Routes,
    readiness: Readiness,
    metrics: Metrics,
    tls: Tls | None,
    beside: Callable[[Handler], Handler],
) -> _ListeningServers:
    control, data = (
        HttpServer(
            _without_prefix(settings.prefix, readiness.wrap(RequestLog(plane, level=logging.INFO))),
            max_body=MAX_BODY,
            stream_over=STREAM_OVER,
            unbounded=_unbounded(settings.prefix),
        )
        for plane in (beside(routes.app), _data_plane(routes.gateway))
    )
    url = data_url = await _listen(control, settings, settings.port, "--port", tls)
    if not settings.one_port:
        data_url = await _listen(data, settings, settings.data_port, "--data-port", tls)
    servers = [control, data]
    if settings.metrics_port is not None:
        scraped, metrics_url = await listen(metrics, settings.metrics_port)
        servers.append(scraped)
        log.info("metrics are at %s, without a token", metrics_url)
    return _ListeningServers(servers, url, data_url)


async def _announce(settings: ServeSettings, ledger: Ledger, url: str, tls: Tls | None) -> None:
    """Publish this server's address to others on the same store, and again when SIGHUP reloads its certificate."""
    published = settings.advertise or reachable_url(url, settings.store_url)
    address = ServerAddress(published, ledger, tls, bool(settings.advertise))
    await address.publish()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, address.reload_certificate)


async def _resume_services(services: Services, life: _Lifetime) -> None:
    resumed = await services.open()
    life.on_exit(services.close, lambda: services.close(hand_over=True))
    if resumed:
        log.info("resumed %d services", resumed)


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
