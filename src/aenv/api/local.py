"""``aenv serve --local``: the platform for one user of this machine, on a unix socket.

Nobody has to start it: the first `Environment` does, and it ends by itself when nobody has needed it for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from aenv.api.app import PlatformApp
from aenv.api.engines import ENGINES
from aenv.api.instances import Instances
from aenv.api.sources import OpenHub, Sources
from aenv.client.local import LocalPaths
from aenv.core.logging import getLogger
from aenv.engines.base import Engine
from aenv.isolation.delegation import enter_own_group
from aenv.isolation.linux import peer_user
from aenv.runtime.http import HttpServer

log = getLogger("local")

FIRST_CLIENT = 30.0
"""Seconds that whoever started us has to come."""
MAX_BODY = 16 * 1024 * 1024


def serve(paths: LocalPaths, *, linger: float, engine: str, pool: int, open_hub: OpenHub | None = None) -> int:
    """Serve until nobody has needed us for ``linger`` seconds, or until SIGTERM."""
    enter_own_group()
    janitor = start_janitor(paths.runtime)
    try:
        return asyncio.run(_serve(paths, linger, ENGINES[engine](paths.instances, pool), Sources(open_hub)))
    finally:
        janitor.stdin.close() if janitor.stdin else None
        janitor.wait()


async def _serve(paths: LocalPaths, linger: float, engine: Engine, sources: Sources) -> int:
    instances = Instances(engine, sources)
    server = HttpServer(PlatformApp(instances), max_body=MAX_BODY, admit=_same_user)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = await server.listen(uds=str(paths.socket))
    log.info("serving at %s", paths.socket)
    waiting = asyncio.create_task(_until_idle(instances, linger))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    stopping.cancel()
    listener.close()
    paths.socket.unlink(missing_ok=True)
    await server.close(grace=1.0)
    await engine.close()
    await sources.close()
    return 0


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


def start_janitor(runtime: Path, *, whole: bool = False) -> subprocess.Popen[bytes]:
    """Have somebody clean up should we be killed: it waits for its standard input to end.

    ``whole``: the folder is this server's own, and goes with it.
    """
    script = Path(__file__).with_name("janitor.py")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(script), str(runtime), str(os.getpid()), *(["whole"] if whole else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
