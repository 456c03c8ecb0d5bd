"""Sandboxes on this Linux machine, forked from a warm parent: no Docker, no image, no daemon of root's."""

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
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from aenv.core.logging import getLogger
from aenv.engines import layers
from aenv.engines.base import Engine, Exit, SandboxRef, SandboxSpec
from aenv.engines.bases import Bases
from aenv.engines.egress import Door, Egress
from aenv.engines.imports import imported_by
from aenv.engines.parents import Parents
from aenv.engines.pool import MOST, PATIENCE, Pool
from aenv.errors import EnvironmentTimeoutError, LoadError, Unavailable
from aenv.isolation.limits import Cgroup, Cgroups
from aenv.isolation.rootfs import PROJECT
from aenv.isolation.zygote import MESSAGE, Spawn, ZygoteSpec, parameters_file, spawn_message

log = getLogger("native")

ZYGOTE_SECONDS = 60.0
END_SECONDS = 2.0
LOG_BYTES = 256 * 1024
IDLE_ZYGOTES = 8
"""Warm parents without sandboxes that are kept; the longest unused goes first."""
FIRST_USER, USERS = 900_000, 50_000
"""The host's users that root's sandboxes run as: one per warm parent, none of which owns anything."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
"""Variables of the user's that a warm parent gets: sandboxes find all of its in their /proc/self/environ."""
_IGNORED = {"__pycache__", ".git", ".venv", "venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"}


class NativeEngine(Engine):
    """Forks sandboxes from one zygote per project, as it was when the zygote started."""

    networks = frozenset(("none", "loopback", "egress", "host"))
    bases = True

    def __init__(self, folder: Path, *, pool: int = MOST) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._cgroups = Cgroups(f"aenv-{os.getpid()}")
        self._zygotes: dict[tuple[str, str], _Zygote] = {}
        self._retired: set[_Zygote] = set()
        self._sandboxes: dict[str, _Sandbox] = {}
        self._specs: dict[str, SandboxSpec] = {}
        self._pool: Pool[_Sandbox] = Pool(
            self._spare, self._end, lambda sandbox: sandbox.exit is None, forget=self._forget, most=pool
        )
        self._starting: dict[tuple[str, str], asyncio.Lock] = {}
        self._egress = Egress(self._note)
        self._bases = Bases()
        self._parents: Parents[_Sandbox] = Parents(self._prepare, self._end_parent, lambda parent: parent.exit is None)
        self._later: asyncio.TimerHandle | None = None
        self._families: set[_Zygote] = set()
        """Zygotes that fork from one parent each."""

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        spec = await self._bases.resolved(spec)
        key = f"{fingerprint(spec.project, spec.files)} {spec.key}"
        sandbox = self._pool.take(key)
        if sandbox is None:
            sandbox = await self._fork(spec, key)
        self._specs[key] = spec
        self._pool.refill(key)
        return sandbox.ref

    async def _spare(self, key: str) -> _Sandbox:
        return await self._fork(self._specs[key], key, spare=True)

    async def _fork(self, spec: SandboxSpec, key: str, *, spare: bool = False) -> _Sandbox:
        """One that answers: a fork of what has loaded the same before, or else one that loads it for itself."""
        zygote = await self._zygote(spec)
        parent = await self._parents.of(key, spec)
        if parent is not None:
            try:
                return await self._spawned(spec, parent.zygote, "branch", spare)
            except Unavailable as error:
                if parent.exit is None:
                    log.warning("%s is loaded anew for every instance: %s", spec.name, error.message)
                    self._parents.unfit(key)
        return await self._spawned(spec, zygote, "spawn", spare)

    async def _prepare(self, spec: SandboxSpec) -> _Sandbox | None:
        """A sandbox that has loaded the environment and waits to be forked; None when it is not fit for that."""
        zygote = await (await self._zygote(spec)).multiply()
        self._families.add(zygote)
        parent = self._made(spec, zygote)
        try:
            said = await zygote.spawn(parent, "prepare")
        except BaseException:
            await asyncio.shield(self._end_parent(parent))
            raise
        if "unfit" not in said:
            return parent
        log.info("%s is loaded anew for every instance: %s when it was loaded", spec.name, said["unfit"])
        await self._end_parent(parent)
        return None

    async def _end_parent(self, parent: _Sandbox) -> None:
        parent.zygote.kill(parent.id)
        await parent.gone.wait()
        parent.clean()
        self._families.discard(parent.zygote)
        self._retired.add(parent.zygote)
        await self._tidy()

    async def _spawned(self, spec: SandboxSpec, zygote: _Zygote, op: str, spare: bool) -> _Sandbox:
        sandbox = self._made(spec, zygote)
        sandbox.spare = spare
        self._sandboxes[sandbox.id] = sandbox
        try:
            said = await zygote.spawn(sandbox, op)
        except BaseException:
            await asyncio.shield(self._end(sandbox))
            raise
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(PATIENCE, self._cgroups.make_spare, spec.limits)
        sandbox.ref = replace(sandbox.ref, healthy=bool(said.get("healthy")))
        return sandbox

    def _made(self, spec: SandboxSpec, zygote: _Zygote) -> _Sandbox:
        unique = secrets.token_hex(4)
        name = f"{spec.name.partition('@')[0]}-{unique}"
        group = self._cgroups.make(spec.limits)
        sandbox = _Sandbox(name, spec, self._folder / f"{unique}.sock", zygote, group)
        if spec.network.mode == "egress":
            sandbox.door = self._egress.door(name, spec.network.allow)
        return sandbox

    def _forget(self, key: str) -> None:
        """Nobody has asked for it for a while."""
        self._specs.pop(key, None)
        self._parents.forget(key)

    async def poll(self, ref: SandboxRef) -> Exit | None:
        sandbox = self._sandboxes.get(ref.id)
        return sandbox.exit if sandbox else Exit(-1, "there is no such sandbox")

    async def stop(self, ref: SandboxRef) -> None:
        sandbox = self._sandboxes.get(ref.id)
        if sandbox is not None:
            await self._end(sandbox)

    async def running(self) -> AsyncIterator[SandboxRef]:
        spare = set(self._pool.ready())
        for sandbox in list(self._sandboxes.values()):
            if sandbox.exit is None and sandbox not in spare:
                yield sandbox.ref

    async def close(self) -> None:
        if self._later is not None:
            self._later.cancel()
        await self._pool.close()
        await self._parents.close()
        for sandbox in list(self._sandboxes.values()):
            sandbox.zygote.kill(sandbox.id)
        for zygote in [*self._families, *self._zygotes.values(), *self._retired]:
            await zygote.end()
        for sandbox in list(self._sandboxes.values()):
            sandbox.clean()
        self._sandboxes.clear()
        await self._egress.end()
        self._cgroups.remove()

    def logs(self, ref: SandboxRef) -> str:
        sandbox = self._sandboxes.get(ref.id)
        return sandbox.log_text() if sandbox else ""

    def log_since(self, ref: SandboxRef, position: int) -> tuple[str, int]:
        sandbox = self._sandboxes.get(ref.id)
        return sandbox.log_since(position) if sandbox else ("", position)

    def usage(self, ref: SandboxRef) -> dict[str, Any]:
        sandbox = self._sandboxes.get(ref.id)
        return dict(sandbox.group.usage()) if sandbox and sandbox.group else {}

    def _note(self, name: str, text: str) -> None:
        """Something about a sandbox that belongs into its log."""
        if name in self._sandboxes:
            self._sandboxes[name].log(text.encode())

    async def _end(self, sandbox: _Sandbox) -> None:
        sandbox.zygote.kill(sandbox.id)
        await sandbox.gone.wait()
        self._sandboxes.pop(sandbox.id, None)
        sandbox.clean()
        await self._tidy()

    async def _zygote(self, spec: SandboxSpec) -> _Zygote:
        key = (_parent_name(spec), fingerprint(spec.project, spec.files))
        lock = self._starting.setdefault(key, asyncio.Lock())
        async with lock:
            zygote = self._zygotes.get(key)
            if zygote is None or not zygote.alive:
                for other in [k for k in self._zygotes if k[0] == key[0]]:
                    self._retired.add(self._zygotes.pop(other))
                for spare in self._pool.drop(lambda s: s.zygote not in self._retired):
                    await self._end(spare)
                self._parents.drop(lambda parent: parent.zygote.origin not in self._retired)
                zygote = await self._new_zygote(spec)
                self._zygotes[key] = zygote
            else:
                self._zygotes[key] = self._zygotes.pop(key)  # the last one is the last one used
        self._starting.pop(key, None)
        return zygote

    async def _new_zygote(self, spec: SandboxSpec) -> _Zygote:
        """With the project's imports made, unless they leave something running that a fork would break."""
        project = spec.project
        wanted = layers.requirements_of(project)
        shown = [str(await layers.layer(wanted, layers.cache_folder()))] if wanted else []
        for preload in (imported_by(project, spec.files), []):
            zygote = _Zygote(spec, self._folder)
            try:
                await zygote.start(shown, preload)
            except _Unsafe:
                continue
            return zygote
        raise Unavailable(f"the warm parent of {project} cannot be forked: it has threads of its own")

    async def _tidy(self) -> None:
        """End parents that nobody will fork from any more."""
        for zygote in [z for z in self._retired if not z.sandboxes]:
            self._retired.discard(zygote)
            await zygote.end()
        idle = [key for key, zygote in self._zygotes.items() if not zygote.sandboxes]
        for key in idle[: max(0, len(idle) - IDLE_ZYGOTES)]:
            await self._zygotes.pop(key).end()


class _Unsafe(Exception):
    """What a warm parent imported cannot be forked."""


class _Zygote:
    """The warm parent of one project's sandboxes, seen from outside."""

    def __init__(self, spec: SandboxSpec, folder: Path) -> None:
        self._spec = spec
        self._project = spec.project
        self._folder = folder
        self.origin: _Zygote | None = None
        """The one that this one was forked from, if any."""
        self._log = folder / f"zygote-{hashlib.sha256(_parent_name(spec).encode()).hexdigest()[:12]}.log"
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[None] | None = None
        self.sandboxes: dict[str, _Sandbox] = {}
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
                cwd="/", env={name: value for name, value in os.environ.items() if name in PASSED_ON},
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

    async def multiply(self) -> _Zygote:
        """A second one, in all like this one."""
        other = _Zygote(self._spec, self._folder)
        other.origin = self
        other._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other._control.setblocking(False)
        with theirs:
            await self._send(spawn_message(Spawn(secrets.token_hex(4), op="multiply")), [theirs.fileno()])
        asyncio.get_running_loop().add_reader(other._control, other._read)
        other.alive = True
        return other

    async def spawn(self, sandbox: _Sandbox, op: str = "spawn") -> dict[str, Any]:
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
                self._ready.set_exception(_Unsafe(message["error"]))
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


class _Sandbox:
    """One sandbox, seen from outside."""

    def __init__(self, name: str, spec: SandboxSpec, path: Path, zygote: _Zygote, group: Cgroup | None) -> None:
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


def _parent_name(spec: SandboxSpec) -> str:
    """The same for all sandboxes that can be forked from one warm parent."""
    place = str(spec.project) if spec.files is None else str(spec.code)
    place = place if spec.base is None else f"{place} on {spec.base}"
    place = f"{place} of {spec.tenant}" if spec.tenant else place
    return f"{place} in the host's network" if spec.network.mode == "host" else place


def fingerprint(project: Path, files: Iterable[str] | None = None) -> str:
    """Changes when a file of the project does; only ``files`` of it count, if given."""
    digest = hashlib.sha256()
    folders = [project] if files is None else []
    for path in [] if files is None else [project / name for name in files]:
        if path.is_dir():
            folders.append(path)
        elif path.exists():
            digest.update(f"{path}\0{path.stat().st_mtime_ns}\0{path.stat().st_size}\n".encode())
    while folders:
        for entry in sorted(os.scandir(folders.pop()), key=lambda e: e.name):
            if entry.name in _IGNORED:
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif entry.name.endswith((".py", ".json", ".txt", ".toml")):
                about = entry.stat(follow_symlinks=False)
                digest.update(f"{entry.path}\0{about.st_mtime_ns}\0{about.st_size}\n".encode())
    return digest.hexdigest()


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
