"""Handle of a box: a running container (`aenv.images.container`) created without Docker."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aenv.errors import Unavailable, UsageError
from aenv.images import container
from aenv.images.container import ContainerSpec
from aenv.images.container_init import MESSAGE
from aenv.isolation.limits.cgroups import Cgroup

MAX_OUTPUT = 1 << 20
"""Bytes of a program's output that are kept: half from its start, half from its end."""
CHUNK = 1 << 16
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class BoxResult:
    """Exit code and output of a program in a box."""

    code: int
    output: str
    errors: str = ""
    timed_out: bool = False


class Box:
    """A running container. All programs started in it share one pid namespace, until the box is stopped."""

    def __init__(self, spec: ContainerSpec, *, variables: Mapping[str, str], group: Cgroup | None = None) -> None:
        self._spec = spec
        self._variables = {"PATH": PATH, **variables}
        self._group = group
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._drains: set[_Drain] = set()
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[None] | None = None
        self._init_pid = 0

    async def start(self, channel: int | None = None, network_of: Box | None = None) -> None:
        """Create the container.

        ``channel``: of an egress endpoint, for a box with ``egress``. ``network_of``: a box whose network namespace to
        share; its processes and files stay separate.

        Raises:
            Unavailable: this host does not allow it.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            ours.setsockopt(socket.SOL_SOCKET, kind, 2 * MESSAGE)
        cgroups = self._group.open_for_joining() if self._group else []
        stage = tempfile.mkdtemp(prefix="aenv-box-")
        os.chmod(stage, 0o755)  # the container's root is an unprivileged host user and must be able to enter
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "aenv.images.container", str(theirs.fileno()),
                    pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, cwd="/",
                )  # fmt: skip
            self._control = ours
            loop.add_reader(ours, self._receive)
            joining = network_of.namespaces() if network_of is not None else []
            spec = replace(self._spec, stage=stage, shares_network=network_of is not None)
            try:
                fds = [*joining, *([channel] if channel is not None else []), *cgroups]
                socket.send_fds(ours, [container.spec_message(spec)], fds)
            finally:
                for fd in joining:
                    os.close(fd)
            await self._ready
        except BaseException:
            await asyncio.shield(self.stop())
            raise
        finally:
            for fd in cgroups:
                os.close(fd)
            with contextlib.suppress(OSError):
                os.rmdir(stage)

    def namespaces(self) -> list[int]:
        """Open its user and network namespaces; the caller closes the descriptors."""
        return [os.open(f"/proc/{self._init_pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("user", "net")]

    async def stop(self) -> None:
        """Kill all processes in the box. File changes stay in its state folder."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._process is not None:
            await self._process.wait()
        self._fail_pending("the box has been stopped")
        for drain in list(self._drains):
            drain.close()
        if self._group is not None:
            self._group.remove()

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        user: str = "",
        timeout: float | None = None,
        stdin: bytes = b"",
        nice: int = 0,
        merge_stderr: bool = False,
        kill_others: bool = False,
    ) -> BoxResult:
        """Run a program, or a shell command line, to its end; background processes that it leaves keep running.

        ``merge_stderr``: stderr goes to the same stream as stdout. ``kill_others``: when it ends, all other processes
        in the box are killed.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        out = self._new_drain()
        errors = out if merge_stderr else self._new_drain()
        start_error = self._new_drain()
        number = next(self._numbers)
        stdin_fd = _stdin_file(stdin)
        timed_out = False
        try:
            message = {"op": "exec", "argv": argv, "cwd": cwd, "env": {**self._variables, **(env or {})}, "user": user,
                       "nice": nice, "kill_others": kill_others}  # fmt: skip
            ended = self._request(number, message, [stdin_fd, out.write_end, errors.write_end, start_error.write_end])
            for drain in {out, errors, start_error}:
                drain.close_write_end()
            try:
                async with asyncio.timeout(timeout):
                    code = await asyncio.shield(ended)
            except TimeoutError:
                timed_out = True
                self._signal(number, signal.SIGKILL)
                await ended
                code = 124
            except asyncio.CancelledError:
                self._signal(number, signal.SIGKILL)
                raise
        finally:
            os.close(stdin_fd)
            for drain in {out, errors, start_error}:
                drain.close_write_end()
        stderr = errors.text() if errors is not out else ""
        return BoxResult(code, out.text(), f"{stderr}{start_error.text()}", timed_out)

    async def is_idle(self) -> bool:
        """Return True if no program runs in the box. The init process answers, without running any of its programs."""
        error_output = self._new_drain()
        try:
            ended = self._request(next(self._numbers), {"op": "idle"}, [error_output.write_end])
        finally:
            error_output.close_write_end()
        return await ended == 0

    def open_terminal(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], user: str = "") -> int:
        """Run a program on a pseudo-terminal; return the descriptor of its master side."""
        master, slave = os.openpty()
        error_output = self._new_drain()
        try:
            message = {"op": "exec", "argv": list(argv), "cwd": cwd, "env": {**self._variables, **env}, "user": user,
                       "tty": True}  # fmt: skip
            self._request(next(self._numbers), message, [slave, slave, slave, error_output.write_end])
        finally:
            os.close(slave)
            error_output.close_write_end()
        return master

    async def unpack(self, archive: Callable[[io.RawIOBase], None], path: str, *, owner: str = "") -> None:
        """Unpack a tar below a path in the box; ``archive`` writes the tar, in a thread."""
        read_end, write_end = os.pipe()
        error_output = self._new_drain()
        number = next(self._numbers)
        try:
            ended = self._request(
                number, {"op": "unpack", "path": path, "owner": owner}, [read_end, error_output.write_end]
            )
        finally:
            os.close(read_end)
            error_output.close_write_end()
        failed: list[BaseException] = []

        def write() -> None:
            try:
                with open(write_end, "wb", buffering=0) as target:
                    archive(target)
            except BrokenPipeError:
                return  # the reading side reports the error
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=write, name="aenv-box-unpack")
        thread.start()
        code = await ended
        thread.join()
        if failed:
            raise failed[0]
        if code:
            raise UsageError(f"{path}: files cannot be unpacked there: {error_output.text()}")

    async def pack(self, path: str, target: Path) -> None:
        """Write the file or folder at a path to a tar; its member names begin with a dot."""
        error_output = self._new_drain()
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            ended = self._request(
                next(self._numbers), {"op": "pack", "path": path}, [descriptor, error_output.write_end]
            )
        finally:
            os.close(descriptor)
            error_output.close_write_end()
        if await ended:
            raise UsageError(f"{path} cannot be read: {error_output.text()}")

    async def remove(self, *paths: str) -> None:
        """Remove files and folders in the box; missing ones are ignored."""
        error_output = self._new_drain()
        try:
            ended = self._request(next(self._numbers), {"op": "remove", "paths": list(paths)}, [error_output.write_end])
        finally:
            error_output.close_write_end()
        if await ended:
            raise UsageError(f"{', '.join(paths)} cannot be removed: {error_output.text()}")

    def _request(self, number: int, message: dict[str, Any], fds: list[int]) -> asyncio.Future[int]:
        if self._control is None:
            raise Unavailable("the box has been stopped")
        data = json.dumps({**message, "id": number}).encode()
        if len(data) > MESSAGE:
            raise UsageError("the command and its variables are too long")
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            socket.send_fds(self._control, [data], fds)
        except OSError as error:
            del self._waiting[number]
            raise Unavailable(f"the box cannot be reached: {error}") from None
        return waiting

    def _signal(self, number: int, which: int) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"op": "signal", "id": number, "signal": which}).encode())

    def _receive(self) -> None:
        assert self._control is not None
        assert self._ready is not None
        try:
            data = self._control.recv(MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            self._fail_pending("the box has ended unexpectedly; it may have run out of memory")
            return
        message = json.loads(data)
        if message["op"] == "made":
            self._init_pid = message["pid"]
        elif message["op"] == "ready":
            self._ready.set_result(None)
        elif message["op"] == "failed":
            if not self._ready.done():
                self._ready.set_exception(Unavailable(f"a box cannot be created here: {message['error']}"))
        elif (waiting := self._waiting.pop(message["id"], None)) is not None and not waiting.done():
            waiting.set_result(message["code"])

    def _fail_pending(self, why: str) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(Unavailable(why))
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(Unavailable(why))

    def _new_drain(self) -> _Drain:
        drain = _Drain(self._drains.discard)
        self._drains.add(drain)
        return drain


class _Drain:
    """Pipe that is read until all writers have closed it, so that a background program never blocks on a full pipe."""

    def __init__(self, on_closed: Callable[[_Drain], None]) -> None:
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        self._on_closed = on_closed
        self._head, self._tail, self._dropped = bytearray(), bytearray(), 0
        asyncio.get_running_loop().add_reader(self._read, self._take)

    def close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        self.close_write_end()
        if self._read >= 0:
            asyncio.get_running_loop().remove_reader(self._read)
            os.close(self._read)
            self._read = -1
            self._on_closed(self)

    def text(self) -> str:
        """Return the output so far; what exceeds `MAX_OUTPUT` is cut from the middle."""
        while self._read >= 0 and self._take():
            pass
        cut = f"\n[{self._dropped} bytes left out]\n".encode() if self._dropped else b""
        return bytes(self._head + cut + self._tail).decode(errors="replace")

    def _take(self) -> bool:
        try:
            data = os.read(self._read, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        room = MAX_OUTPUT // 2 - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if (over := len(self._tail) - MAX_OUTPUT // 2) > 0:
            self._dropped += over
            del self._tail[:over]
        return True


def _stdin_file(content: bytes) -> int:
    """Return the descriptor of a memory file with this content, or of /dev/null if it is empty."""
    if not content:
        return os.open("/dev/null", os.O_RDONLY)
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
