"""``aenv serve --local``: the platform for one user of this machine, on a unix socket.

Nobody has to start it: the first `Environment` does, and it ends by itself when nobody has needed it for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

from aenv.api.access import Allowance, Doorkeeper
from aenv.api.app import PlatformApp
from aenv.api.ask import refusal
from aenv.api.choosing import choose
from aenv.api.gateway import Gateway
from aenv.api.instances import Instances
from aenv.api.observe import Observed
from aenv.api.ports import Ports
from aenv.api.readiness import Readiness
from aenv.api.sources import OpenHub, Sources
from aenv.client.local import LocalPaths
from aenv.core.logging import getLogger
from aenv.engines.base import Engine
from aenv.errors import AEnvError, NotFound
from aenv.isolation.delegation import enter_own_group
from aenv.isolation.limits import group_name, open_many_files
from aenv.isolation.linux import peer_user
from aenv.runtime.http import HttpServer
from aenv.runtime.messages import Answer, Request
from aenv.schema import paths as schema_paths
from aenv.tracing import spans

log = getLogger("local")

FIRST_CLIENT = 30.0
"""Seconds that whoever started us has to come."""
MAX_BODY = 16 * 1024 * 1024
STREAM_OVER = 64 * 1024


def serve(paths: LocalPaths, *, linger: float, engine: str, pool: int, open_hub: OpenHub | None = None) -> int:
    """Serve until nobody has needed us for ``linger`` seconds, or until SIGTERM."""
    open_many_files()
    enter_own_group()
    janitor = start_janitor(paths.runtime, group_name(), paths.instances.name)
    try:
        chosen = choose(engine, paths.instances, pool=pool, group=group_name())
        return asyncio.run(_serve(paths, linger, chosen, Sources(open_hub)))
    finally:
        janitor.stdin.close() if janitor.stdin else None
        janitor.wait()


def _may_be_ready(request: Request) -> bool:
    """What is asked for may be in the pool."""
    return request.method == "POST" and request.path == schema_paths.INSTANCES


async def _serve(paths: LocalPaths, linger: float, engine: Engine, sources: Sources) -> int:
    instances = Instances(engine, sources)
    ports = LocalPorts(instances)
    spans.begin("aenv-local")
    app = Readiness(engine).before(Observed(PlatformApp(instances, ports=ports), level=logging.DEBUG))
    server = HttpServer(app, max_body=MAX_BODY, admit=_same_user, prompt=_may_be_ready)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server.listen_at(str(paths.socket))
    log.info("serving at %s", paths.socket)
    waiting = asyncio.create_task(_until_idle(instances, linger))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    stopping.cancel()
    paths.socket.unlink(missing_ok=True)
    await server.close(grace=1.0)
    await ports.close()
    await engine.close()
    await sources.close()
    return 0


class LocalPorts(Ports):
    """URLs of ports of instances on this machine: what they lead to listens from the first of them on."""

    def __init__(self, instances: Instances) -> None:
        super().__init__(secrets.token_bytes(32))
        door = Doorkeeper(None, Allowance(), only_loopback=True)
        self._gateway = Gateway(instances, door, ports=self)
        self._server = HttpServer(self._answer, max_body=MAX_BODY, stream_over=STREAM_OVER)

    async def open(self) -> None:
        if not self._public_url:
            listener = await self._server.listen(host="127.0.0.1")
            self._public_url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Nobody gets there any more."""
        await self._server.close(0)
        self._gateway.close()

    async def _answer(self, request: Request) -> Answer:
        """Everybody on this machine can ask here, so only what is signed is answered."""
        try:
            if not request.path.startswith(f"{schema_paths.PORT}/"):
                raise NotFound("here are only ports of instances")
            return await self._gateway(request)
        except AEnvError as error:
            return refusal(error)


def _same_user(connection: socket.socket) -> bool:
    """The socket's folder is ours alone; this is for the day when it is not."""
    return peer_user(connection) in (os.geteuid(), 0)


async def _until_idle(instances: Instances, linger: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_CLIENT):
            await instances.changed.wait()
    while True:
        instances.changed.clear()
        if instances.in_use:
            await instances.changed.wait()
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(linger):
                await instances.changed.wait()
                continue
        return


def start_janitor(runtime: Path, *names: str) -> subprocess.Popen[bytes]:
    """Have somebody clean up should we be killed: it waits for its standard input to end.

    ``names``: of the control group and, unless all of the runtime folder is to go, of the folder in it that is.
    """
    script = Path(__file__).with_name("janitor.py")
    janitor = subprocess.Popen(
        [sys.executable, "-I", "-S", str(script), str(runtime), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert janitor.stdin is not None
    os.write(janitor.stdin.fileno(), b"%d\n" % os.getpid())
    return janitor
