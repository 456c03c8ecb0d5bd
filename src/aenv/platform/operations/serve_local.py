"""``aenv serve --local``: a platform for one user of this machine and one interpreter, on a unix socket.

The first `Environment` starts it, and it exits after it was unused for a while. Platforms of other interpreters and
versions run beside it, and share nothing with it but an account of what is in use on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import hmac
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Literal

from aenv.client.local_platforms import (
    OTHER_SERVES,
    LocalPaths,
    PlatformInfo,
    all_of_user,
    is_alive,
    remove_old,
    retire,
)
from aenv.client.platform_identity import Identity
from aenv.engines.base import Engine, EngineOptions
from aenv.errors import AEnvError, NotFound, Unauthorized
from aenv.http.messages import Answer, Request
from aenv.http.server import HttpServer
from aenv.isolation.kernel.linux import peer_user
from aenv.isolation.limits.cgroups import group_name, raise_open_files_limit
from aenv.isolation.limits.delegation import enter_delegated_group
from aenv.platform.access.platform_tokens import Allowance, Authenticator
from aenv.platform.app import PlatformApp
from aenv.platform.gateway.gateway import Gateway
from aenv.platform.gateway.ports import Ports
from aenv.platform.instances.admission import Capacity
from aenv.platform.instances.batch_routes import batch_routes
from aenv.platform.instances.ended import EndedInstances
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.instances.machine_account import MachineAccount
from aenv.platform.instances.machine_capacity import machine_bound
from aenv.platform.instances.requests.datasources import DatasourceRoots
from aenv.platform.instances.requests.env_sources import OpenHub, Sources
from aenv.platform.instances.warm_pools import Pools, pool_routes
from aenv.platform.nested.tunnels import Tunnels
from aenv.platform.operations.cache_budget import keep_within_budget
from aenv.platform.operations.engine_factory import create_engine
from aenv.platform.operations.readiness import Readiness
from aenv.platform.operations.request_log import RequestLog
from aenv.platform.request_context import refusal
from aenv.schema import paths as schema_paths
from aenv.storage.base import Store
from aenv.storage.sqlite import SqliteStore
from aenv.tracing import spans
from aenv.tracing.logging import getLogger

log = getLogger("local")

_MCP_PATH = re.compile(re.escape(schema_paths.INSTANCE_PATH) + r"/([A-Za-z0-9._~-]{1,300})" + schema_paths.MCP)

FIRST_CLIENT = 30.0
"""Seconds that the process that started the platform has to connect."""
LOCK_SECONDS = 1.0
"""Seconds to wait for other processes that only test the lock."""
MAX_BODY = 16 * 1024 * 1024
STREAM_OVER = 64 * 1024


def serve(
    paths: LocalPaths,
    *,
    linger: float,
    engine: str,
    pool: int,
    most: int = 0,
    open_hub: OpenHub | None = None,
    fork: bool = True,
    isolation: Literal["namespaces", "confined", "auto"] = "namespaces",
    detach: bool = False,
) -> int:
    """Serve until unused for ``linger`` seconds, or until SIGTERM. Returns the exit code of the process.

    ``most``: instances of all platforms of this user together; 0: as many as the machine has room for. ``detach``:
    serve in a child process that nobody has started, since the platform serves others than the process that needed it
    first: Ray and other programs kill the children of a worker when it ends.
    """
    alive = _lock(paths)
    if alive is None:
        return OTHER_SERVES
    ready = _detached() if detach else None
    raise_open_files_limit()
    enter_delegated_group()
    with alive:
        _remove_leftovers(paths)
        cleanup = start_crash_cleanup(paths.folder, group_name(), paths.instances.name)
        try:
            options = EngineOptions(pool, group_name(), fork, url=engine, isolation=isolation)
            chosen = create_engine(engine, paths.instances, options)
            capacity = Capacity(most).bounded_by(machine_bound())
            return asyncio.run(_serve(paths, linger, chosen, Sources(open_hub), capacity, ready))
        finally:
            for path in (paths.socket, paths.about):
                path.unlink(missing_ok=True)
            cleanup.stdin.close() if cleanup.stdin else None
            cleanup.wait()
            shutil.rmtree(paths.instances, ignore_errors=True)  # in case the cleanup process was killed before


def _detached() -> IO[bytes]:
    """Go on in a child process, and end this one when the child serves. Returns what the child writes to then.

    The child keeps this process's lock. If it ends before it serves, this process ends with its exit code.
    """
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        return os.fdopen(tells, "wb")
    os.close(tells)
    if os.read(told, 1):
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _remove_leftovers(paths: LocalPaths) -> None:
    """Remove leftovers of a former platform in this folder, in case its cleanup process was killed with it."""
    paths.socket.unlink(missing_ok=True)
    for folder in paths.folder.glob("i-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _lock(paths: LocalPaths) -> IO[str] | None:
    """Lock the platform's folder for the life of this process; None if another process holds it."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        paths.folder.mkdir(mode=0o700, exist_ok=True)
        file = paths.alive.open("w")
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), paths.alive.stat()):
                return file
        file.close()
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)  # another process may only be testing the lock


def _may_be_immediate(request: Request) -> bool:
    """Return whether the request may be served at once from the pool."""
    return request.method == "POST" and request.path == schema_paths.INSTANCES


async def _serve(
    paths: LocalPaths, linger: float, engine: Engine, sources: Sources, capacity: Capacity, ready: IO[bytes] | None
) -> int:
    store, machine = _ended_store(paths), _account(paths)
    instances = Instances(
        engine,
        sources,
        capacity=capacity,
        ended=EndedInstances(store),
        machine=machine,
        datasources=DatasourceRoots.of_user(),
    )
    ports = LocalPorts(instances)
    pools = Pools(instances)
    tunnels = Tunnels(instances, ports.gateway, lambda handler: RequestLog(handler, level=logging.DEBUG))
    spans.begin("aenv-local")
    more = [*pool_routes(pools), *batch_routes(instances)]
    app = Readiness(engine).wrap(RequestLog(PlatformApp(instances, ports=ports, more=more), level=logging.DEBUG))
    server = HttpServer(app, max_body=MAX_BODY, admit=_same_user, prompt=_may_be_immediate)
    stop, retired = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, retired.set)
    about = PlatformInfo(os.getpid(), time.time(), Identity.own())
    about.write(paths)
    server.listen_at(str(paths.socket))
    gc.freeze()  # start-up objects live as long as the process: exclude them from collections
    log.info("serving at %s", paths.socket)
    if ready is not None:
        with ready:
            ready.write(b"1")
    await asyncio.to_thread(_retire_and_remove_old, paths, about.identity)
    caches = asyncio.create_task(keep_within_budget())
    waiting = asyncio.create_task(_until_idle(instances, pools, linger, retired))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, stopping, caches):
        task.cancel()
    paths.socket.unlink(missing_ok=True)
    instances.stopping = True
    await server.close(grace=1.0)
    tunnels.close()
    await ports.close()
    await instances.close()
    await engine.close()
    await sources.close()
    if store is not None:
        await store.close()
    if machine is not None:
        machine.close()
    return 0


def _ended_store(paths: LocalPaths) -> Store | None:
    try:
        return SqliteStore(paths.ended)
    except AEnvError as error:
        log.warning("the reasons why instances ended are lost when this platform stops: %s", error.message)
        return None


def _account(paths: LocalPaths) -> MachineAccount | None:
    try:
        return MachineAccount(paths.account, paths.key)
    except OSError as error:
        log.warning("instances of other local platforms are not counted: %s", error)
        return None


def _retire_and_remove_old(paths: LocalPaths, own: Identity) -> None:
    """Ask platforms that this one replaces to exit once unused, and remove those that are long gone."""
    for other in all_of_user(paths):
        about = PlatformInfo.read(other) if other.key != paths.key and is_alive(other) else None
        if about is not None and own.replaces(about.identity):
            retire(other)
    remove_old(paths, time.time())


class LocalPorts(Ports):
    """URLs of ports and MCP servers of local instances. A TCP server for them starts with the first URL."""

    def __init__(self, instances: Instances) -> None:
        super().__init__(secrets.token_bytes(32))
        self._instances = instances
        self._opening = asyncio.Lock()
        authenticator = Authenticator(None, Allowance(), only_loopback=True)
        self.gateway = Gateway(instances, authenticator, ports=self)
        self._server = HttpServer(self._answer, max_body=MAX_BODY, stream_over=STREAM_OVER)

    async def open(self) -> None:
        async with self._opening:
            if not self._public_url:
                listener = await self._server.listen(host="127.0.0.1")
                self._public_url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"

    async def open_for_mcp(self) -> None:
        if not self._instances.mcp_base:
            await self.open()
            self._instances.mcp_base = f"{self._public_url}{schema_paths.INSTANCE_PATH}"

    async def close(self) -> None:
        """Stop serving the ports."""
        await self._server.close(0)
        self.gateway.close()

    async def _answer(self, request: Request) -> Answer:
        """Handle a request. All users of this machine can connect, so it has a signed URL or an instance's token."""
        try:
            named = _MCP_PATH.fullmatch(request.path)
            if named is not None:
                return await self._to_mcp(named[1], request)
            if not request.path.startswith(f"{schema_paths.PORT}/"):
                raise NotFound("only ports of instances are served here")
            return await self.gateway(request)
        except AEnvError as error:
            return refusal(error)

    async def _to_mcp(self, name: str, request: Request) -> Answer:
        record = self._instances.peek(name)
        token = record.ref.token if record is not None and record.ref is not None else secrets.token_hex(16)
        if not hmac.compare_digest(request.header(b"authorization"), f"Bearer {token}".encode()):
            raise Unauthorized("send the instance's token as 'Authorization: Bearer <token>'")
        assert record is not None
        return await self.gateway.forward(record, request, schema_paths.MCP.encode())


def _same_user(connection: socket.socket) -> bool:
    """Admit only our own user and root. A second line of defence: the socket's folder is private already."""
    return peer_user(connection) in (os.geteuid(), 0)


async def _until_idle(instances: Instances, pools: Pools, linger: float, retired: asyncio.Event) -> None:
    """Return once unused for ``linger`` seconds, or unused and retired. A warm pool counts as use until then."""
    await _wait_for_either(instances.changed, retired, FIRST_CLIENT)
    while True:
        instances.changed.clear()
        if instances.in_use:
            await instances.changed.wait()
        elif retired.is_set() or (not await _wait_for_either(instances.changed, retired, linger) and not pools.in_use):
            return


async def _wait_for_either(one: asyncio.Event, other: asyncio.Event, seconds: float) -> bool:
    """Return whether one of the events was set in time."""
    tasks = [asyncio.create_task(event.wait()) for event in (one, other)]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    return bool(done)


def start_crash_cleanup(runtime: Path, *names: str) -> subprocess.Popen[bytes]:
    """Start a process that cleans up if this one is killed: it waits for the end of its standard input.

    ``names``: the control group and, unless the whole folder is to be removed, the folder in it.
    """
    script = Path(__file__).with_name("crash_cleanup.py")
    cleanup = subprocess.Popen(
        [sys.executable, "-I", "-S", str(script), str(runtime), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert cleanup.stdin is not None
    os.write(cleanup.stdin.fileno(), b"%d\n" % os.getpid())
    return cleanup
