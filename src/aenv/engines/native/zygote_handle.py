"""A zygote, as the engine sees it from outside: start it, send it requests, hear of the end of what it forked.

docs/design/instance-creation.md shows where its requests come from, and what the zygote does with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aenv.engines.base import Exit, SandboxSpec
from aenv.engines.exits import classify
from aenv.engines.fd_holders import Holder, ZygoteProcess
from aenv.engines.native.handover_records import ZYGOTE, ZygoteRecord
from aenv.engines.native.machine_exhaustion import exhausted
from aenv.engines.native.sandbox_handle import SandboxHandle
from aenv.errors import EnvironmentTimeoutError, ForkRefused, LoadError, Unavailable
from aenv.isolation.confined.level import Isolation
from aenv.isolation.files.rootfs import PROJECT
from aenv.isolation.files.trees import remove_tree
from aenv.isolation.files.volumes import Volume
from aenv.isolation.forking.zygote_spec import MESSAGE, Spawn, ZygoteSpec, parameters_file, spawn_message
from aenv.tracing.logging import getLogger

log = getLogger("zygote")

ZYGOTE_SECONDS = 180.0
END_SECONDS = 2.0
FORK_ANSWER_SECONDS = 60.0
"""For a fork of a parent that has imported the code to answer. It takes milliseconds, and seconds on an overloaded
machine. Longer than the zygote's limits for one attempt (`FORK_SECONDS` and `STEP_SECONDS` of
isolation/forking/zygote.py, 30 s together), so that the zygote ends a parent that hangs before the server gives up."""
LOAD_SECONDS = 900.0
"""For an environment's code to be imported."""
SEND_SECONDS = 30.0
"""For a zygote to read a request."""
HOLD_SECONDS = 25.0
"""For a zygote to stop an instance that is to be forked; longer than its own limit."""
GONE_SECONDS = 20.0
"""For a zygote to report the end of a sandbox that it was told to kill."""
REMOVE_SECONDS = 20.0
"""For the files of a confined zygote that was killed to be removed."""
KEEP_SECONDS = 20.0
"""For a zygote to end the sandboxes that a new server does not know, and to list the others."""
ZYGOTES: dict[Isolation, str] = {
    "namespaces": "aenv.isolation.forking.zygote",
    "confined": "aenv.isolation.confined.confined_zygote",
}
"""Modules to run, by isolation level."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
"""Environment variables that a zygote gets: sandboxes find all of them in their /proc/self/environ."""


class ZygoteHandle:
    """The zygote of one version of a project, or a fork of it that controls one preloaded parent."""

    def __init__(
        self,
        spec: SandboxSpec,
        folder: Path,
        holder: Holder,
        origin: ZygoteHandle | None = None,
        *,
        plain: bool = False,
        level: Isolation = "namespaces",
    ) -> None:
        """``plain``: use no private parts of CPython, see `cpython_internals`."""
        self.level = level
        self._left_files = ""
        """Folder to remove if the zygote was killed. Empty: there is none."""
        self.name = secrets.token_hex(4)
        self.spec = spec
        self._project = spec.project
        self._folder = folder
        self._holder = holder
        self.plain = plain
        self.origin = origin
        """The zygote that this one was forked from, if any."""
        self._offshoots: set[ZygoteHandle] = set()
        self._control: socket.socket | None = None
        self._process: ZygoteProcess | None = None
        self._started: asyncio.Future[None] | None = None
        self._listed: asyncio.Future[set[str]] | None = None
        self.sandboxes: dict[str, SandboxHandle] = {}
        self.packages: list[str] = origin.packages if origin is not None else []
        """Third-party modules that the project imports."""
        self.forks_waiting = 0
        """Requests for forks of its preloaded parent that are not answered yet."""
        self._holds: dict[str, asyncio.Future[None]] = {}
        """Requests to stop an instance for a fork, by its id."""
        self._holding = asyncio.Lock()
        self.alive = False

    @property
    def log(self) -> Path:
        """The file that its stdout and stderr go to."""
        return self._folder / f"zygote-{self.name}.log"

    @property
    def in_use(self) -> bool:
        """True if a sandbox or another zygote would end with it."""
        return bool(self.sandboxes or self._offshoots)

    async def start(self, shown: list[str]) -> None:
        """Start the process; return when it can fork. ``shown``: further folders for sandboxes to import from.

        Raises:
            Unavailable: it ended, or this host cannot do it.
            EnvironmentTimeoutError: it did not start in time.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._control = ours
        self._started = loop.create_future()
        command = [sys.executable, "-m", ZYGOTES[self.level]]
        variables = {name: value for name, value in os.environ.items() if name in PASSED_ON}
        with theirs, self.log.open("wb") as log_file:
            try:
                self._process = await self._holder.start(
                    self.name, command, theirs.fileno(), log_file.fileno(), variables
                )
            except BaseException:
                self._started = None  # so that `end` fails no future that nothing awaits
                await self.end()
                raise
        await loop.sock_sendall(ours, json.dumps(asdict(self._specification(shown))).encode())
        loop.add_reader(ours, self._read)
        self.alive = True
        try:
            async with asyncio.timeout(ZYGOTE_SECONDS):
                await self._started
        except TimeoutError:
            await self.end()
            raise EnvironmentTimeoutError(
                f"the zygote of {self._project} did not start within {ZYGOTE_SECONDS:g} s; see {self.log}",
                details={"budget": "startup", "seconds": ZYGOTE_SECONDS},
            ) from None
        except BaseException:
            await self.end()
            raise
        self._hold()

    def _specification(self, shown: list[str]) -> ZygoteSpec:
        volume = self.spec.volume
        return ZygoteSpec(
            "aenv.runtime.sandboxed:serve",
            "aenv.runtime.sandboxed:prepare",
            f"aenv.runtime.sandboxed:{'warm' if self.spec.mcp else 'warm_without_mcp'}",
            "aenv.runtime.unforked",
            "aenv.runtime.sandboxed:rehearse",
            shown,
            project=str(self._project),
            user=_owner(volume) if os.geteuid() == 0 else None,
            host_network=self.spec.network.mode == "host",
            files=None if self.spec.files is None else list(self.spec.files),
            base=self.spec.base,
            volume=volume,
            disk=self.spec.limits.disk if self.spec.disk_layer else None,
            plain=self.plain,
        )

    async def multiply(self) -> ZygoteHandle:
        """Fork a second zygote like this one, to control a preloaded parent."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        other = ZygoteHandle(self.spec, self._folder, self._holder, self, plain=self.plain)
        with theirs:
            await self._send(spawn_message(Spawn(other.name, op="multiply")), [theirs.fileno()])
        other._connect(ours)
        other._hold()
        return other

    def _hold(self) -> None:
        assert self._control is not None
        record = ZygoteRecord(name=self.name, spec=self.spec, origin=self.origin.name if self.origin else None)
        with record.file() as file:
            self._holder.hold(f"{ZYGOTE}{self.name}", [file.fileno(), self._control.fileno()])

    def _connect(self, control: socket.socket) -> None:
        """Use a control socket whose other end a running zygote has."""
        self._control = control
        asyncio.get_running_loop().add_reader(control, self._read)
        self.alive = True
        if self.origin is not None:
            self.origin._offshoots.add(self)

    async def adopt(self, name: str, control: socket.socket, process: ZygoteProcess | None) -> set[str]:
        """Take over a zygote of the previous server. It ends all but those in ``sandboxes``; return the ids of those.

        Raises:
            Unavailable: the zygote is gone, or does not answer.
        """
        self.name = name
        self._process = process
        self._listed = asyncio.get_running_loop().create_future()
        self._listed.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # it may fail before it is awaited
        self._connect(control)
        names = [*self.sandboxes, *(offshoot.name for offshoot in self._offshoots)]
        await self._send(json.dumps({"op": "keep", "id": "", "ids": names}).encode(), [])
        try:
            async with asyncio.timeout(KEEP_SECONDS):
                return await self._listed
        except TimeoutError:
            raise Unavailable(f"the zygote of {self._project} does not answer") from None

    async def hold(self, name: str) -> None:
        """Stop an instance that waits to be forked. `release` lets it go on.

        Raises:
            ForkRefused: it cannot be forked.
            Unavailable: the zygote is gone.
        """
        async with self._holding:  # what others want, such as the end of an instance, comes in between
            await self._hold_one(name)

    async def _hold_one(self, name: str) -> None:
        held = self._holds[name] = asyncio.get_running_loop().create_future()
        try:
            await self._send(json.dumps({"op": "hold", "id": name}).encode(), [])
            async with asyncio.timeout(HOLD_SECONDS):
                await held
        except TimeoutError:
            self.release(name)
            raise ForkRefused("the instance could not be stopped in time") from None
        except BaseException:  # a cancelled request must not leave the instance stopped
            self.release(name)
            raise
        finally:
            self._holds.pop(name, None)

    def release(self, name: str) -> None:
        """Let an instance go on that `hold` stopped."""
        if self._control is not None and self.alive:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"op": "release", "id": name}).encode())

    async def spawn(self, sandbox: SandboxHandle, op: str = "spawn", *, imports_code: bool = True) -> dict[str, Any]:
        """Make a sandbox, or a preloaded parent; return what it answers. ``op``: see `Spawn.op`.

        ``imports_code``: False for a fork of a parent that has imported the code, which therefore answers at once.

        Raises:
            LoadError: the environment's code cannot be imported.
            EnvironmentTimeoutError: it did not answer in time.
            Unavailable: the zygote or the sandbox is gone.
        """
        self.sandboxes[sandbox.id] = sandbox
        if not self.alive:
            self.forget(sandbox.id)
            raise Unavailable(f"the zygote of {self._project} is gone; try again")
        if op != "branch":
            return await self._spawn(sandbox, op, imports_code=imports_code)
        self.forks_waiting += 1
        try:
            return await self._spawn(sandbox, op, imports_code=imports_code)
        finally:
            self.forks_waiting -= 1

    async def _spawn(self, sandbox: SandboxHandle, op: str, *, imports_code: bool) -> dict[str, Any]:
        status = await self._request(sandbox, op)
        if sandbox.egress is not None:
            try:
                await sandbox.egress.open()
            except BaseException:
                os.close(status)
                raise
        seconds = LOAD_SECONDS if imports_code else FORK_ANSWER_SECONDS
        try:
            answer = await _read_once(status, seconds)
        except TimeoutError:
            what = "its code is still being imported" if imports_code else "the fork did not answer"
            raise EnvironmentTimeoutError(
                f"{sandbox.spec.name} did not start within {seconds:g} s: {what}",
                details={"budget": "startup", "seconds": seconds},
            ) from None
        if answer is None:
            await self.until_gone(sandbox)
            raise _start_error(sandbox, op)
        return self._parse(answer)

    async def _request(self, sandbox: SandboxHandle, op: str) -> int:
        """Send the zygote a request with the descriptors of a new sandbox; return the read end of its status pipe."""
        ours: list[int] = []
        theirs: list[int] = []  # each is noted as soon as it is open: any of these calls may fail
        listener = None
        spec = sandbox.spec
        try:
            listener = sandbox.listen()
            for _ in ("status", "log"):
                end, other_end = os.pipe2(os.O_CLOEXEC)
                ours.append(end)
                theirs.append(other_end)
                os.set_blocking(end, False)
            theirs.append(parameters_file(sandbox.parameters()))
            channels = sandbox.channels
            joins = sandbox.group.open_for_joining() if sandbox.group else []
            theirs += joins
            fds = [listener.fileno(), *theirs[:3], *channels, *joins]
            spawn = Spawn(
                sandbox.id, spec.limits, op, spec.network.mode, spec.fork, spec.forkable, source=sandbox.fork_of
            )
            await self._send(spawn_message(spawn), fds)
            sandbox.requested.set()
        except BaseException:
            for fd in ours:
                os.close(fd)
            self.forget(sandbox.id)
            raise
        finally:
            if listener is not None:
                listener.close()
            for fd in theirs:
                os.close(fd)
        status, log_pipe = ours
        sandbox.read_log_from(log_pipe)
        return status

    def _parse(self, answer: bytes) -> dict[str, Any]:
        """Return a sandbox's answer, which is foreign and may be anything. Raise the error that it reports."""
        try:
            message = json.loads(answer)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise Unavailable("the sandbox did not report whether it started")
        if "error" in message:
            if message.get("code") == "zygote" and (error := exhausted(message.get("errno"))) is not None:
                raise error
            text = str(message["error"]).replace(PROJECT + "/", f"{self._project}/")
            if message.get("code") == ForkRefused.code:
                raise ForkRefused(text)
            raise (LoadError if message.get("code") in ("load", "usage") else Unavailable)(text)
        return message

    async def until_gone(self, sandbox: SandboxHandle) -> None:
        """Wait for the end of a killed sandbox. End a zygote that does not report it, with all that it forked."""
        if sandbox.gone.is_set():
            return
        # `asyncio.timeout` takes three times as long to set up.
        timer = asyncio.get_running_loop().call_later(GONE_SECONDS, sandbox.gone.set)
        try:
            await sandbox.gone.wait()
        finally:
            timer.cancel()
        if sandbox.exit is None:
            log.warning("the zygote of %s does not answer; it is ended with all its sandboxes", self._project)
            await self.end()

    def kill(self, name: str) -> None:
        """Kill one sandbox, with all that runs in it."""
        sandbox = self.sandboxes.get(name)
        if sandbox is not None:
            sandbox.stopped = True
            self._send_kill(name)

    def _send_kill(self, name: str) -> None:
        if self._control is not None and self.alive:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"op": "kill", "id": name}).encode())

    def forget(self, name: str) -> None:
        """Remove a sandbox that the zygote was never asked for."""
        sandbox = self.sandboxes.pop(name, None)
        if sandbox is not None and sandbox.exit is None:
            sandbox.ended(Exit(-1, "it was never started"))

    async def end(self) -> None:
        """End the zygote, and with it everything that it forked. Idempotent."""
        self._lost()
        if self.origin is not None:
            self.origin._send_kill(self.name)  # it ends when its control socket is closed, unless it hangs
        if self._process is not None:
            try:
                async with asyncio.timeout(END_SECONDS):
                    await self._process.wait()  # it ends when its control socket is closed
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GONE_SECONDS):
                        await self._process.wait()
        if self._left_files and os.path.exists(self._left_files):
            await asyncio.to_thread(remove_tree, self._left_files, REMOVE_SECONDS)
        self.log.unlink(missing_ok=True)

    async def _send(self, message: bytes, fds: list[int]) -> None:
        deadline = asyncio.get_running_loop().time() + SEND_SECONDS
        while True:
            if self._control is None:
                raise Unavailable(f"the zygote of {self._project} is gone; try again")
            try:
                socket.send_fds(self._control, [message], fds)
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline:
                    raise Unavailable(f"the zygote of {self._project} does not read requests") from None
                await asyncio.sleep(0.001)
            except OSError as error:
                raise Unavailable(f"the zygote of {self._project} is gone: {error}") from error
            else:
                return

    def _read(self) -> None:
        assert self._control is not None
        while True:
            try:
                data = self._control.recv(MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lost()
                return
            self._handle(json.loads(data))

    def _handle(self, message: dict[str, Any]) -> None:
        if message["op"] == "kept":
            if self._listed is not None and not self._listed.done():
                self._listed.set_result(set(message["ids"]))
        elif message["op"] == "held":
            held = self._holds.get(message["id"])
            if held is not None and not held.done():
                if "error" in message:
                    held.set_exception(ForkRefused(f"this instance cannot be forked now: {message['error']}"))
                else:
                    held.set_result(None)
        elif message["op"] == "exit":
            sandbox = self.sandboxes.pop(message["id"], None)
            if sandbox is not None:
                sandbox.ended(classify(message["code"], out_of_memory=sandbox.ran_out_of_memory))
        elif self._started is not None and not self._started.done():
            if message["op"] == "ready":
                self._left_files = message.get("folder", "")
                self._started.set_result(None)
            else:
                kind = LoadError if message.get("code") == "load" else Unavailable
                self._started.set_exception(kind(message["error"]))

    def _lost(self) -> None:
        """Note the end of the zygote, and so of all of its sandboxes: the control socket was closed."""
        self.alive = False
        if self.origin is not None:
            self.origin._offshoots.discard(self)
        self._holder.drop(f"{ZYGOTE}{self.name}")
        for waiting in (self._listed, *self._holds.values()):
            if waiting is not None and not waiting.done():
                waiting.set_exception(Unavailable(f"the zygote of {self._project} is gone"))
        if self._control is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._started is not None and not self._started.done():
            output = self.log.read_text(errors="replace") if self.log.exists() else ""
            self._started.set_exception(Unavailable(f"the zygote ended while starting{_quote(output)}"))
        for name in list(self.sandboxes):
            self.sandboxes.pop(name).ended(Exit(-9, "its zygote was killed"))


async def _read_once(fd: int, seconds: float) -> bytes | None:
    """Read the one message that comes through a pipe; None if its writer ended without one. Closes the pipe.

    Raises:
        TimeoutError: no message came in time.
    """
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()
    timer = _late(came, seconds)

    def read() -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        if not came.done():
            came.set_result(data)

    loop.add_reader(fd, read)
    try:
        return await came or None
    finally:
        timer.cancel()
        loop.remove_reader(fd)
        os.close(fd)


def _late(future: asyncio.Future[Any], seconds: float) -> asyncio.TimerHandle:
    """Have a future fail with TimeoutError after so long. `asyncio.timeout` takes three times as long to set up."""

    def fail() -> None:
        if not future.done():
            future.set_exception(TimeoutError())

    return asyncio.get_running_loop().call_later(seconds, fail)


def _start_error(sandbox: SandboxHandle, op: str) -> LoadError | Unavailable:
    """Return the error for a sandbox that ended without an answer."""
    ended = sandbox.exit or Exit(-1, "it ended")
    output = _quote(sandbox.log.since(0)[0])
    if ended.code >= 0 and op in ("spawn", "prepare"):
        return LoadError(f"the environment's code ended the process while it was loaded: {ended.reason}{output}")
    return Unavailable(f"the sandbox did not start: {ended.reason}{output}")


def _quote(text: str) -> str:
    tail = text.strip()[-2000:]
    return f"\n{tail}" if tail else ""


def _owner(volume: Volume | None) -> int | None:
    """Return the user that sandboxes have to be, to use a volume; None: any."""
    return None if volume is None or volume.any_user else os.stat(volume.source).st_uid
