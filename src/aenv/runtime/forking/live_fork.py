"""An instance that can be forked while it runs, from inside: come to rest, be forked, go on.

The event loop is left without a thread, a call or an unanswered request: `LiveFork` lets no new call begin, waits for
those that run, runs the environment's hooks, ends our threads, and looks for what a copy of the memory cannot carry.
Then one plain function, called by the loop, waits for the zygote. When it returns, it is either in the instance, where
nothing has changed, or in a fork: a copy of the same moment, with files, descriptors, parameters and namespaces of its
own (docs/design/live-fork.md).
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_core import from_json

from aenv.authoring.call import Call
from aenv.authoring.fork_hooks import ForkHooks, has_hooks
from aenv.errors import AEnvError, ForkRefused, problem
from aenv.http.messages import Answer, Request, Response
from aenv.isolation.forking.preloaded import DOOR_FLAGS, FORK_CHANNEL
from aenv.isolation.kernel import linux
from aenv.runtime.calls.endpoints import EndpointCatalog
from aenv.runtime.forking import open_files
from aenv.runtime.forking.fork_obstacles import refuse_obstacles
from aenv.runtime.forking.forked_loop import own_descriptors, renew
from aenv.runtime.forking.open_files import Descriptors
from aenv.runtime.orphans import Orphans
from aenv.runtime.serve import EnvServer
from aenv.schema import paths

log = logging.getLogger("aenv.runtime")

DEFAULT_WAIT = 30.0
"""Seconds to wait for the calls that run."""
PARK_SECONDS = 30.0
"""Seconds to wait for the zygote, which begins at once. Then the request was given up."""
_LISTENER, _STATUS, _PARAMETERS = 3, 4, 6
_OK = b'{"success":true,"data":null}'
Handler = Callable[[Request], Awaitable[Answer]]
BecomeFork = Callable[[dict[str, Any]], None]
"""Takes over the parameters of a fork: variables, seeds."""


class LiveFork:
    """Stands before an instance's routes."""

    def __init__(self, service: EnvServer, catalog: EndpointCatalog, orphans: Orphans, become: BecomeFork) -> None:
        self._service = service
        self._catalog = catalog
        self._orphans = orphans
        self._become = become
        self._routes: Handler = service.app
        self._open = 0
        """Requests that are being answered."""
        self._idle = asyncio.Event()
        self._gate: asyncio.Event | None = None
        """Set once calls may go on. None: they may."""
        self._hooks = ForkHooks()
        self._going_on: asyncio.Task[None] | None = None
        """Task that finishes a fork in the background."""

    async def __call__(self, request: Request) -> Answer:
        """Answer a request; those that come while the instance is forked wait for it."""
        if request.path == paths.PARK and request.method == "POST":
            try:
                self._service.app.authorise(request)
                await asyncio.sleep(0)  # the server runs a handler outside of a task until it first waits
                return await self._park(from_json(request.body or b"{}"))
            except AEnvError as error:
                return Response(error.status, _json(error))
        while self._gate is not None:
            await self._gate.wait()
        self._open += 1
        try:
            return await self._routes(request)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def _park(self, options: dict[str, Any]) -> Response:
        """Come to rest, answer, and wait for the zygote."""
        if self._gate is not None:
            raise ForkRefused("another fork of this instance is under way; wait for it")
        self._gate = asyncio.Event()
        try:
            await self._rest(float(options.get("wait", DEFAULT_WAIT)))
            try:
                descriptors = self._survey()
            except BaseException:
                await self._run_hooks(is_child=False)
                raise
        except BaseException:
            self._let_go()
            raise
        asyncio.get_running_loop().call_soon(self._be_forked, descriptors)
        return Response(200, _OK)

    async def _rest(self, seconds: float) -> None:
        """Wait for the calls that run, and run the hooks."""
        self._idle.clear()
        if self._open:
            try:
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
            except TimeoutError:
                raise ForkRefused(
                    f"a call has been running for more than {seconds:g} s; wait for its end, or pass a longer wait"
                ) from None
        if has_hooks():
            try:
                await self._catalog.workers.run(self._hooks.before, Call("on_fork"))
            except Exception as error:
                raise ForkRefused(f"an on_fork hook failed: {type(error).__name__}: {error}") from error

    def _survey(self) -> Descriptors:
        self._catalog.workers.park()
        self._orphans.reap_now()
        loops = [asyncio.get_running_loop()]
        if self._catalog.workers.environment_loop is not None:
            loops.append(self._catalog.workers.environment_loop)
        ours = {*self._service.server.descriptors(), *self._orphans.victims.descriptors()}
        for loop in loops:
            ours |= own_descriptors(loop)
        descriptors = open_files.survey(ours)
        refuse_obstacles(descriptors)
        return descriptors

    async def _run_hooks(self, *, is_child: bool) -> None:
        if has_hooks():
            await self._catalog.workers.run(lambda: self._hooks.after(is_child=is_child), Call("on_fork"))

    def _let_go(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.set()

    # --- between two turns of the event loop

    def _be_forked(self, descriptors: Descriptors) -> None:
        """Wait for the zygote, and be forked. Runs in the instance, and goes on in its forks as well."""
        loop = asyncio.get_running_loop()
        place = os.getcwd()
        umask = os.umask(0o022)
        os.umask(umask)
        try:
            forked = _wait_for_zygote() and linux.reach_fork_point(DOOR_FLAGS) == 0
        except OSError as error:
            log.warning("the instance was not forked: %s", error)
            forked = False
        if not forked:
            self._going_on = loop.create_task(self._go_on(is_child=False))
            return
        listener, status, parameters = open_files.move_up([_LISTENER, _STATUS, _PARAMETERS], descriptors.numbers)
        report = _Reports(status)
        try:
            open_files.reopen(descriptors)
            linux.after_fork_in_child()
            listener = _lowest(listener)
            os.chdir(place)
            os.umask(umask)
            self._begin(loop, listener, _read_all(parameters))
        except BaseException as error:
            report.error(error)
            raise
        self._going_on = loop.create_task(self._begun(report))

    def _begin(self, loop: asyncio.AbstractEventLoop, listener: int, parameters: dict[str, Any]) -> None:
        """Be an instance of its own: a loop, a server, variables and random numbers."""
        renew(loop)
        other = self._catalog.workers.environment_loop
        if other is not None:
            renew(other)
        asyncio._set_running_loop(loop)
        if sys.version_info >= (3, 12):
            asyncio.set_event_loop(loop)
        if signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
            self._orphans.begin_in_fork()
        self._orphans.victims.begin()
        linux.set_dumpable(False)
        self._become(parameters)
        _renew_randomness()
        self._service.app.lock(parameters["token"])
        self._service.server.start_over(socket.socket(fileno=listener))

    async def _begun(self, report: _Reports) -> None:
        try:
            await self._go_on(is_child=True)
        except Exception as error:
            report.error(error)
            os._exit(1)
        report.ready(healthy=not self._catalog.health)

    async def _go_on(self, *, is_child: bool) -> None:
        try:
            await self._run_hooks(is_child=is_child)
        except Exception:
            if is_child:
                raise
            log.exception("an on_fork hook failed after the instance was forked")
        finally:
            self._let_go()


class _Reports:
    """Reports once through the status pipe whether a fork has begun."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def ready(self, *, healthy: bool) -> None:
        self._write(b'{"ready": true, "healthy": %s}' % (b"true" if healthy else b"false"))

    def error(self, error: BaseException) -> None:
        text = f"a fork could not go on: {type(error).__name__}: {error}"
        self._write(_json(ForkRefused(text[:4000])))

    def _write(self, message: bytes) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.write(fd, message)
            os.close(fd)


def _wait_for_zygote() -> bool:
    """Return True when the zygote is about to fork this process; False when it does not come."""
    poll = select.poll()
    poll.register(FORK_CHANNEL, select.POLLIN)
    return bool(poll.poll(PARK_SECONDS * 1000)) and bool(os.read(FORK_CHANNEL, 16))


def _lowest(fd: int) -> int:
    """Move a descriptor to the lowest number: it would be a higher one in every generation of forks."""
    low = os.dup(fd)
    os.close(fd)
    return low


def _read_all(fd: int) -> dict[str, Any]:
    with open(fd, "rb") as file:
        parameters: dict[str, Any] = from_json(file.read())
    return parameters


def _renew_randomness() -> None:
    """Renew what Python and OpenSSL would otherwise draw in every fork alike. The generators were seeded before."""
    openssl = sys.modules.get("_ssl")
    if openssl is not None:  # it notices a fork by the process id, which is 1 in every instance
        openssl.RAND_add(os.urandom(64), 64.0)
    tempfile._name_sequence = None  # type: ignore[attr-defined]
    uuids = sys.modules.get("uuid")
    if uuids is not None:
        uuids._last_timestamp = None  # type: ignore[attr-defined]
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]


def _json(error: AEnvError) -> bytes:
    from pydantic_core import to_json

    return to_json(problem(error), fallback=repr)
