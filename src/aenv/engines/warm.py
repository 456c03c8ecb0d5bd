"""A warm parent and the sandboxes that are forked from it, as the engine sees them from outside."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import socket
import sys
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aenv.engines.base import Exit, SandboxRef, SandboxSpec
from aenv.engines.egress import Door
from aenv.errors import EnvironmentTimeoutError, LoadError, Unavailable
from aenv.isolation.limits import Cgroup
from aenv.isolation.rootfs import PROJECT
from aenv.isolation.spec import MESSAGE, Spawn, ZygoteSpec, parameters_file, spawn_message

ZYGOTE_SECONDS = 180.0
END_SECONDS = 2.0
LOG_BYTES = 256 * 1024
FIRST_USER, USERS = 900_000, 50_000
"""The host's users that root's sandboxes run as: one per warm parent, none of which owns anything."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
"""Variables of the user's that a warm parent gets: sandboxes find all of its in their /proc/self/environ."""

FOR_IMPORTS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Else ``import numpy`` starts threads, and what has threads cannot be forked; and ``import litellm`` asks a server.
Sandboxes do not get these variables."""


class Unsafe(Exception):
    """What a warm parent imported cannot be forked."""


class Zygote:
    """The warm parent of one project's sandboxes, seen from outside."""

    def __init__(self, spec: SandboxSpec, folder: Path) -> None:
        self._spec = spec
        self._project = spec.project
        self._folder = folder
        self.origin: Zygote | None = None
        """The one that this one was forked from, if any."""
        self._log = folder / f"zygote-{hashlib.sha256(parent_name(spec).encode()).hexdigest()[:12]}.log"
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[None] | None = None
        self.sandboxes: dict[str, Sandbox] = {}
        self.alive = False

    async def start(self, shown: list[str], preload: list[str]) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._control = ours
        self._ready = loop.create_future()
        with theirs, self._log.open("wb") as log_file:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "aenv.isolation.zygote", str(theirs.fileno()),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, stdout=log_file, stderr=log_file,
                cwd="/", env={name: value for name, value in os.environ.items() if name in PASSED_ON} | FOR_IMPORTS,
            )  # fmt: skip
        user = FIRST_USER + self._process.pid % USERS if os.geteuid() == 0 else None
        spec = ZygoteSpec(
            "aenv.runtime.sandboxed:serve",
            "aenv.runtime.sandboxed:prepare",
            "aenv.runtime.sandboxed:warm",
            shown,
            preload,
            project=str(self._project),
            user=user,
            host_network=self._spec.network.mode == "host",
            files=None if self._spec.files is None else list(self._spec.files),
            base=self._spec.base,
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
                f"the warm parent of {self._project} did not start within {ZYGOTE_SECONDS:g} s; see {self._log}",
                details={"budget": "startup", "seconds": ZYGOTE_SECONDS},
            ) from None
        except BaseException:
            await self.end()
            raise

    async def multiply(self) -> Zygote:
        """A second one, in all like this one."""
        other = Zygote(self._spec, self._folder)
        other.origin = self
        other._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other._control.setblocking(False)
        with theirs:
            await self._send(spawn_message(Spawn(secrets.token_hex(4), op="multiply")), [theirs.fileno()])
        asyncio.get_running_loop().add_reader(other._control, other._read)
        other.alive = True
        return other

    async def spawn(self, sandbox: Sandbox, op: str = "spawn") -> dict[str, Any]:
        """Fork one; return what it says: that its environment answers, or that others can be forked from it."""
        assert self._control is not None
        name = sandbox.id
        self.sandboxes[name] = sandbox
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
            message = spawn_message(Spawn(name, sandbox.spec.limits, op, sandbox.spec.network.mode))
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
        answer = await _read_once(status)
        if answer is None:
            await sandbox.gone.wait()
            ended = sandbox.exit or Exit(-1, "it ended")
            said = _quote(sandbox.log_text())
            if ended.code >= 0 and op != "branch":
                raise LoadError(f"the environment's code ended the process while it was loaded: {ended.reason}{said}")
            raise Unavailable(f"the sandbox did not start: {ended.reason}{said}")
        try:
            told = json.loads(answer)
        except ValueError:
            raise Unavailable("the sandbox did not say whether it started") from None
        if "error" in told:
            message_text = str(told["error"]).replace(PROJECT + "/", f"{self._project}/")
            raise (LoadError if told.get("code") in ("load", "usage") else Unavailable)(message_text)
        return dict(told)

    def kill(self, name: str) -> None:
        """End one sandbox with all that runs in it."""
        if name in self.sandboxes and self._control is not None and self.alive:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"op": "kill", "id": name}).encode())

    def forget(self, name: str) -> None:
        sandbox = self.sandboxes.pop(name, None)
        if sandbox is not None and sandbox.exit is None:
            sandbox.ended(Exit(-1, "it was never started"))

    async def end(self) -> None:
        """End the parent; the kernel ends everything that it forked, and then it is gone itself."""
        self._lost()
        if self._process is not None:
            try:
                async with asyncio.timeout(END_SECONDS):
                    await self._process.wait()  # it ends by itself when nobody is left to fork for
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
            self._log.unlink(missing_ok=True)

    async def _send(self, message: bytes, fds: list[int]) -> None:
        assert self._control is not None
        while True:
            try:
                socket.send_fds(self._control, [message], fds)
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                raise Unavailable(f"the warm parent of {self._project} is gone: {error}") from error
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
        if message["op"] == "exit":
            sandbox = self.sandboxes.pop(message["id"], None)
            if sandbox is not None:
                sandbox.ended(_exit_of(message["code"]))
        elif self._ready is not None and not self._ready.done():
            if message["op"] == "ready":
                self._ready.set_result(None)
            elif message["op"] == "unsafe":
                self._ready.set_exception(Unsafe(message["error"]))
            else:
                self._ready.set_exception(Unavailable(message["error"]))

    def _lost(self) -> None:
        """The control socket ended: the parent is gone, and with it all of its sandboxes."""
        self.alive = False
        if self._control is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._ready is not None and not self._ready.done():
            said = self._log.read_text(errors="replace") if self._log.exists() else ""
            self._ready.set_exception(Unavailable(f"the warm parent ended while starting{_quote(said)}"))
        for name in list(self.sandboxes):
            self.sandboxes.pop(name).ended(Exit(-9, "its warm parent was killed"))


class Sandbox:
    """One sandbox, seen from outside."""

    def __init__(self, name: str, spec: SandboxSpec, path: Path, zygote: Zygote, group: Cgroup | None) -> None:
        self.id = name
        self.spec = spec
        self.ref = SandboxRef(name, f"unix:{path}", secrets.token_urlsafe(24))
        self.path = path
        self.zygote = zygote
        self.group = group
        self.spare = False
        self.exit: Exit | None = None
        self.gone = asyncio.Event()
        self.door: Door | None = None
        self._log: deque[bytes] = deque()
        self._log_size = 0
        self._log_written = 0
        self._log_fd = -1

    def parameters(self) -> dict[str, Any]:
        """What the runtime inside is told."""
        spec = self.spec
        return {
            "path": str(Path(PROJECT) / spec.code.relative_to(spec.project)),
            "directory": PROJECT,
            "name": spec.name,
            "token": self.ref.token,
            "variables": {**spec.network.variables, **spec.variables},
            "arguments": spec.arguments,
            "spare": self.spare,
        }

    @property
    def channels(self) -> list[int]:
        """What it is to hand its door out through."""
        return [self.door.channel] if self.door else []

    def read_log_from(self, fd: int) -> None:
        self._log_fd = fd
        asyncio.get_running_loop().add_reader(fd, self._read_log)

    def _read_log(self) -> None:
        try:
            data = os.read(self._log_fd, 65536)
        except BlockingIOError:
            return
        if not data:
            self._close_log()
            return
        self.log(data)

    def log(self, data: bytes) -> None:
        """Keep it; the oldest goes when there is too much."""
        self._log.append(data)
        self._log_size += len(data)
        self._log_written += len(data)
        while self._log_size - len(self._log[0]) > LOG_BYTES:
            self._log_size -= len(self._log.popleft())

    def _close_log(self) -> None:
        if self._log_fd >= 0:
            asyncio.get_running_loop().remove_reader(self._log_fd)
            os.close(self._log_fd)
            self._log_fd = -1

    def log_text(self) -> str:
        return b"".join(self._log).decode(errors="replace")

    def log_since(self, position: int) -> tuple[str, int]:
        new = max(0, self._log_written - position)
        data = b"".join(self._log)[-new:] if new else b""
        return data.decode(errors="replace"), self._log_written

    def ended(self, how: Exit) -> None:
        self.exit = how
        if self.door is not None:
            self.door.close()
        self.gone.set()

    def clean(self) -> None:
        """Remove what the host knows of it."""
        self._close_log()
        self.path.unlink(missing_ok=True)
        if self.group is not None:
            self.group.remove()


def parent_name(spec: SandboxSpec) -> str:
    """The same for all sandboxes that can be forked from one warm parent."""
    place = str(spec.project) if spec.files is None else str(spec.code)
    place = place if spec.base is None else f"{place} on {spec.base}"
    place = f"{place} of {spec.tenant}" if spec.tenant else place
    return f"{place} in the host's network" if spec.network.mode == "host" else place


async def _read_once(fd: int) -> bytes | None:
    """The one message that comes through a pipe; None when its writer ended without a word."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()

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
        loop.remove_reader(fd)
        os.close(fd)


def _exit_of(code: int) -> Exit:
    if code == -9:
        return Exit(code, "killed: it was stopped, or used more memory than it may")
    return Exit(code, f"killed by signal {-code}" if code < 0 else f"it ended with exit code {code}")


def _quote(text: str) -> str:
    tail = text.strip()[-2000:]
    return f"\n{tail}" if tail else ""
