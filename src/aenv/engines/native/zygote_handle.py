"""A warm parent and the sandboxes that are forked from it, as the engine sees them from outside."""

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

from aenv.client.caller_variables import index_of
from aenv.client.instance_client import InstanceClient
from aenv.engines.base import Exit, SandboxRef, SandboxSpec
from aenv.engines.exits import classify
from aenv.engines.fd_holders import Holder, Process
from aenv.engines.native.handover_records import SANDBOX, ZYGOTE, SandboxRecord, ZygoteRecord
from aenv.engines.sandbox_log import Log
from aenv.errors import EnvironmentTimeoutError, LoadError, Unavailable
from aenv.http.url import ServerUrl
from aenv.isolation.files import custom_rootfs
from aenv.isolation.files.rootfs import PROJECT, SNAPSHOT
from aenv.isolation.forking.zygote_spec import MESSAGE, Spawn, ZygoteSpec, parameters_file, spawn_message
from aenv.isolation.limits import process_usage
from aenv.isolation.limits.cgroups import Cgroup
from aenv.isolation.network.egress_process import EgressEndpoint
from aenv.schema import paths
from aenv.tracing.logging import getLogger

log = getLogger("zygote")

ZYGOTE_SECONDS = 180.0
END_SECONDS = 2.0
FORK_SECONDS = 60.0
"""For a fork of a preloaded parent to answer. It takes milliseconds, and seconds on a machine that is overloaded."""
LOAD_SECONDS = 900.0
"""For an environment's code to be imported."""
SEND_SECONDS = 30.0
"""For a zygote to read a request."""
GONE_SECONDS = 20.0
"""For a zygote to report the end of a sandbox that it was told to kill."""
SETTLE_SECONDS = 5.0
"""For one that was made ahead to take its variables: then another is made."""
KEEP_SECONDS = 20.0
"""For a warm parent to end what nobody knows any more."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
"""Variables of the user's that a warm parent gets: sandboxes find all of its in their /proc/self/environ."""


class ZygoteHandle:
    """The warm parent of one project's sandboxes, seen from outside."""

    def __init__(self, spec: SandboxSpec, folder: Path, holder: Holder, origin: ZygoteHandle | None = None) -> None:
        self.name = secrets.token_hex(4)
        self.spec = spec
        self._project = spec.project
        self._folder = folder
        self._holder = holder
        self.origin = origin
        """The one that this one was forked from, if any."""
        self._offshoots: set[ZygoteHandle] = set()
        self._control: socket.socket | None = None
        self._process: Process | None = None
        self._ready: asyncio.Future[None] | None = None
        self._kept: asyncio.Future[set[str]] | None = None
        self.sandboxes: dict[str, SandboxHandle] = {}
        self.packages: list[str] = origin.packages if origin is not None else []
        """Modules of others that the project imports."""
        self.alive = False

    @property
    def log(self) -> Path:
        """What it has to say."""
        return self._folder / f"zygote-{self.name}.log"

    @property
    def in_use(self) -> bool:
        """Whether anything would end with it."""
        return bool(self.sandboxes or self._offshoots)

    async def start(self, shown: list[str]) -> None:
        """``shown``: further folders of the host that sandboxes see, and import from."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._control = ours
        self._ready = loop.create_future()
        command = [sys.executable, "-m", "aenv.isolation.forking.zygote"]
        variables = {name: value for name, value in os.environ.items() if name in PASSED_ON}
        with theirs, self.log.open("wb") as log_file:
            try:
                self._process = await self._holder.start(
                    self.name, command, theirs.fileno(), log_file.fileno(), variables
                )
            except BaseException:
                self._ready = None  # nobody waits for it
                await self.end()
                raise
        volume = self.spec.volume
        spec = ZygoteSpec(
            "aenv.runtime.sandboxed:serve",
            "aenv.runtime.sandboxed:prepare",
            f"aenv.runtime.sandboxed:{'warm' if self.spec.mcp else 'warm_without_mcp'}",
            "aenv.runtime.unforked",
            "aenv.runtime.sandboxed:rehearse",
            shown,
            project=str(self._project),
            user=os.stat(volume.source).st_uid if volume is not None and os.geteuid() == 0 else None,
            host_network=self.spec.network.mode == "host",
            files=None if self.spec.files is None else list(self.spec.files),
            base=self.spec.base,
            volume=self.spec.volume,
        )
        await loop.sock_sendall(ours, json.dumps(asdict(spec)).encode())
        loop.add_reader(ours, self._read)
        self.alive = True
        try:
            async with asyncio.timeout(ZYGOTE_SECONDS):
                await self._ready
        except TimeoutError:
            await self.end()
            raise EnvironmentTimeoutError(
                f"the warm parent of {self._project} did not start within {ZYGOTE_SECONDS:g} s; see {self.log}",
                details={"budget": "startup", "seconds": ZYGOTE_SECONDS},
            ) from None
        except BaseException:
            await self.end()
            raise
        self._be_held()

    async def multiply(self) -> ZygoteHandle:
        """A second one, in all like this one."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        other = ZygoteHandle(self.spec, self._folder, self._holder, self)
        with theirs:
            await self._send(spawn_message(Spawn(other.name, op="multiply")), [theirs.fileno()])
        other._belong(ours)
        other._be_held()
        return other

    def _be_held(self) -> None:
        assert self._control is not None
        book = ZygoteRecord(name=self.name, spec=self.spec, origin=self.origin.name if self.origin else None)
        with book.file() as file:
            self._holder.hold(f"{ZYGOTE}{self.name}", [file.fileno(), self._control.fileno()])

    def _belong(self, control: socket.socket) -> None:
        """It runs, and this is how to speak to it."""
        self._control = control
        asyncio.get_running_loop().add_reader(control, self._read)
        self.alive = True
        if self.origin is not None:
            self.origin._offshoots.add(self)

    async def taken_over(self, name: str, control: socket.socket, process: Process | None) -> set[str]:
        """Be one that a server before this one has made, with all ``sandboxes`` that it is to go on with and none
        else; those that are there.

        Raises:
            Unavailable: it is not there itself.
        """
        self.name = name
        self._process = process
        self._kept = asyncio.get_running_loop().create_future()
        self._kept.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may be gone before we ask
        self._belong(control)
        names = [*self.sandboxes, *(offshoot.name for offshoot in self._offshoots)]
        await self._send(json.dumps({"op": "keep", "id": "", "ids": names}).encode(), [])
        try:
            async with asyncio.timeout(KEEP_SECONDS):
                return await self._kept
        except TimeoutError:
            raise Unavailable(f"the warm parent of {self._project} does not answer") from None

    async def spawn(self, sandbox: SandboxHandle, op: str = "spawn") -> dict[str, Any]:
        """Fork one; return what it says: that its environment answers, or that others can be forked from it.

        Raises:
            LoadError: its code cannot be imported.
            EnvironmentTimeoutError: it did not answer in time.
            Unavailable: the zygote or the sandbox is gone.
        """
        name = sandbox.id
        self.sandboxes[name] = sandbox
        if not self.alive:
            self.forget(name)
            raise Unavailable(f"the zygote of {self._project} is gone; try again")
        listener = socket.socket(socket.AF_UNIX)
        status, status_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        log_pipe, log_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(log_end, True)
        os.set_blocking(status_end, True)
        parameters = parameters_file(sandbox.parameters())
        joins = sandbox.group.open_for_joining() if sandbox.group else []
        try:
            listener.bind(str(sandbox.path))
            listener.listen(512)
            fds = [listener.fileno(), status_end, log_end, parameters, *sandbox.channels, *joins]
            message = spawn_message(Spawn(name, sandbox.spec.limits, op, sandbox.spec.network.mode, sandbox.spec.fork))
            await self._send(message, fds)
        except BaseException:
            os.close(status)
            os.close(log_pipe)
            self.forget(name)
            raise
        finally:
            listener.close()
            for fd in (status_end, log_end, parameters, *joins):
                os.close(fd)
        sandbox.read_log_from(log_pipe)
        if sandbox.door is not None:
            try:
                await sandbox.door.open()
            except BaseException:
                os.close(status)
                raise
        seconds = FORK_SECONDS if op == "branch" else LOAD_SECONDS
        try:
            answer = await _read_once(status, seconds)
        except TimeoutError:
            what = "its code is still being imported" if op != "branch" else "the fork did not answer"
            raise EnvironmentTimeoutError(
                f"{sandbox.spec.name} did not start within {seconds:g} s: {what}",
                details={"budget": "startup", "seconds": seconds},
            ) from None
        if answer is None:
            await self.until_gone(sandbox)
            ended = sandbox.exit or Exit(-1, "it ended")
            said = _quote(sandbox.log.since(0)[0])
            if ended.code >= 0 and op != "branch":
                raise LoadError(f"the environment's code ended the process while it was loaded: {ended.reason}{said}")
            raise Unavailable(f"the sandbox did not start: {ended.reason}{said}")
        try:
            told = json.loads(answer)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise Unavailable("the sandbox did not say whether it started")
        if "error" in told:
            message_text = str(told["error"]).replace(PROJECT + "/", f"{self._project}/")
            raise (LoadError if told.get("code") in ("load", "usage") else Unavailable)(message_text)
        return told

    async def until_gone(self, sandbox: SandboxHandle) -> None:
        """Wait for the end of a killed sandbox. A zygote that does not report it is ended, with all it forked."""
        try:
            async with asyncio.timeout(GONE_SECONDS):
                await sandbox.gone.wait()
        except TimeoutError:
            log.warning("the zygote of %s does not answer; it is ended with all its sandboxes", self._project)
            await self.end()

    def kill(self, name: str) -> None:
        """End one sandbox with all that runs in it."""
        sandbox = self.sandboxes.get(name)
        if sandbox is not None:
            sandbox.stopped = True
            self._send_kill(name)

    def _send_kill(self, name: str) -> None:
        if self._control is not None and self.alive:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"op": "kill", "id": name}).encode())

    def forget(self, name: str) -> None:
        sandbox = self.sandboxes.pop(name, None)
        if sandbox is not None and sandbox.exit is None:
            sandbox.ended(Exit(-1, "it was never started"))

    async def end(self) -> None:
        """End the zygote; the kernel ends everything that it forked, and then it is gone itself."""
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
            if self._kept is not None and not self._kept.done():
                self._kept.set_result(set(message["ids"]))
        elif message["op"] == "exit":
            sandbox = self.sandboxes.pop(message["id"], None)
            if sandbox is not None:
                sandbox.ended(classify(message["code"], out_of_memory=sandbox.ran_out_of_memory))
        elif self._ready is not None and not self._ready.done():
            if message["op"] == "ready":
                self._ready.set_result(None)
            else:
                kind = LoadError if message.get("code") == "load" else Unavailable
                self._ready.set_exception(kind(message["error"]))

    def _lost(self) -> None:
        """The control socket ended: the parent is gone, and with it all of its sandboxes."""
        self.alive = False
        if self.origin is not None:
            self.origin._offshoots.discard(self)
        self._holder.drop(f"{ZYGOTE}{self.name}")
        if self._kept is not None and not self._kept.done():
            self._kept.set_exception(Unavailable(f"the warm parent of {self._project} is gone"))
        if self._control is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._ready is not None and not self._ready.done():
            said = self.log.read_text(errors="replace") if self.log.exists() else ""
            self._ready.set_exception(Unavailable(f"the warm parent ended while starting{_quote(said)}"))
        for name in list(self.sandboxes):
            self.sandboxes.pop(name).ended(Exit(-9, "its warm parent was killed"))


class SandboxHandle:
    """One sandbox, seen from outside."""

    def __init__(
        self, name: str, spec: SandboxSpec, path: Path, zygote: ZygoteHandle, group: Cgroup | None,
        token: str = "", log: Log | None = None,
    ) -> None:  # fmt: skip
        self.id = name
        self.spec = spec
        self.ref = SandboxRef(name, f"unix:{path}", token or secrets.token_urlsafe(24))
        self.path = path
        self.zygote = zygote
        self.group = group
        self.spare = False
        self.packages_only = False
        """For a preloaded parent: whether it imports the project's packages and not its code."""
        self.reads: frozenset[str] | None = None
        """Of one that others are forked from: the variables that loading it depended on; None: all of them."""
        self.process: int | None = None
        self.exit: Exit | None = None
        self.stopped = False
        """Whether the platform has told the zygote to kill it."""
        self.gone = asyncio.Event()
        self.door: EgressEndpoint | None = None
        self.log = log or Log()
        self._pipe = -1
        """What it writes comes through here."""

    def parameters(self) -> dict[str, Any]:
        """What the runtime inside is told."""
        spec = self.spec
        return {
            "path": str(Path(PROJECT) / spec.code.relative_to(spec.project)),
            "directory": PROJECT,
            "snapshot": SNAPSHOT if spec.base is None else custom_rootfs.SNAPSHOT,
            "name": spec.name,
            "token": self.ref.token,
            "variables": {**spec.network.variables, **spec.variables},
            "arguments": spec.arguments,
            "spare": self.spare,
            "packages": self.zygote.packages,
            "packages_only": self.packages_only,
        }

    async def settle(self, spec: SandboxSpec) -> None:
        """Made ahead without variables: be the one that was asked for.

        Raises:
            AEnvError: it cannot be reached, or does not answer.
        """
        client = InstanceClient(ServerUrl.parse(self.ref.data_url), token=self.ref.token, patience=0.0)
        try:
            await client.call(paths.SETTLE, spec.variables, timeout=SETTLE_SECONDS)
        finally:
            client.close()
        self.spec = spec

    def usage(self) -> dict[str, Any]:
        """What its control group knows, and for the rest what its processes use."""
        used: dict[str, Any] = dict(self.group.usage()) if self.group else {}
        if "cpu_nanoseconds" in used:
            return used
        if self.group is not None:
            return {**process_usage.usage(process_usage.members(self.group.paths)), **used}
        if self.process is None:
            found = process_usage.listening_process(self.path)
            self.process = found if found != os.getpid() else None  # we made the socket; it does not listen itself yet
        return process_usage.usage(process_usage.tree(self.process)) if self.process is not None else {}

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed any of its processes at its memory limit, and that is how it ended."""
        return not self.stopped and self.group is not None and self.group.oom_kills() > 0

    @property
    def channels(self) -> list[int]:
        """What it is to hand its door out through."""
        return [self.door.channel] if self.door else []

    def be_held(self, holder: Holder, note: str) -> None:
        """Have what it takes to find it again held by somebody who outlives this process."""
        book = SandboxRecord(
            id=self.id, zygote=self.zygote.name, spec=self.spec, path=self.path, note=note, token=self.ref.token,
            groups=self.group.paths if self.group else [], cpu_before=self.group.before if self.group else 0,
            healthy=self.ref.healthy, logged=self._pipe >= 0,
        )  # fmt: skip
        fds = [self.log.fd, self._pipe, self.door.listener if self.door else -1]
        with book.file() as file:
            holder.hold(f"{SANDBOX}{self.id}", [file.fileno(), *(fd for fd in fds if fd >= 0)], worth=True)

    def read_log_from(self, fd: int) -> None:
        self._pipe = fd
        asyncio.get_running_loop().add_reader(fd, self._read_log)

    def _read_log(self) -> bool:
        """Whether there may be more of it now."""
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._close_pipe()
            return False
        self.log.append(data)
        return True

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def ended(self, how: Exit) -> None:
        self.exit = how
        while self._pipe >= 0 and self._read_log():  # what it wrote last may not have been read yet
            pass
        if self.door is not None:
            self.door.close()
        self.gone.set()

    def clean(self) -> None:
        """Remove what the host knows of it but for its control group. A second time there is nothing to do."""
        self._close_pipe()
        self.log.close()
        self.path.unlink(missing_ok=True)


def parent_name(spec: SandboxSpec) -> str:
    """The same for all sandboxes that can be forked from one warm parent."""
    place = str(spec.project) if spec.files is None else str(spec.code)
    place = place if spec.base is None else f"{place} on {spec.base}"
    place = f"{place} of {spec.tenant}" if spec.tenant else place
    place = place if spec.mcp else f"{place} without MCP"
    place = f"{place} with {spec.volume}" if spec.volume else place
    index = index_of(spec.fetching)
    place = f"{place} from {index}" if index else place
    return f"{place} in the host's network" if spec.network.mode == "host" else place


async def _read_once(fd: int, seconds: float) -> bytes | None:
    """The one message that comes through a pipe; None when its writer ended without a word.

    Raises:
        TimeoutError: it did not come in time.
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


def _quote(text: str) -> str:
    tail = text.strip()[-2000:]
    return f"\n{tail}" if tail else ""
