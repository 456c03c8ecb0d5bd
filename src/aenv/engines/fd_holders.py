"""The server's connection to the process that holds its file descriptors for a handover to the next server.

That process (`aenv.isolation.forking.fd_holder`) starts the engine's zygotes, and holds a duplicate of every descriptor
by which a server reaches them and their sandboxes. `NoHolder` is for platforms whose sandboxes end with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from aenv.errors import Unavailable
from aenv.isolation.forking import fd_holder
from aenv.tracing.logging import getLogger

log = getLogger("holding")

SOCKET = "keeper.sock"
CONNECT_SECONDS = 5.0
"""For the holder to notice that the previous server is gone."""


class ZygoteProcess(Protocol):
    """A process that a holder started."""

    @property
    def pid(self) -> int: ...
    async def wait(self) -> int: ...
    def kill(self) -> None: ...


class Holder(ABC):
    """Starts processes, and holds file descriptors."""

    @abstractmethod
    async def start(self, name: str, command: list[str], channel: int, log: int, env: dict[str, str]) -> ZygoteProcess:
        """Start a process that gets ``channel`` as its last argument. It ends with the holder.

        Raises:
            Unavailable: it could not be started.
        """

    @abstractmethod
    def hold(self, name: str, fds: Sequence[int], *, wait_for_next: bool = False) -> None:
        """Hold descriptors, in place of those under the same name.

        ``wait_for_next``: should this server end, wait for the next one. If no held descriptors ask for that, the
        holder ends with the server.
        """

    @abstractmethod
    def drop(self, name: str) -> None:
        """Close the descriptors under a name."""


class NoHolder(Holder):
    """No handover: processes end with this one, and descriptors are not held."""

    async def start(self, name: str, command: list[str], channel: int, log: int, env: dict[str, str]) -> ZygoteProcess:
        return await asyncio.create_subprocess_exec(
            *command, str(channel), pass_fds=[channel], stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            cwd="/", env=env,
        )  # fmt: skip

    def hold(self, name: str, fds: Sequence[int], *, wait_for_next: bool = False) -> None:
        """Do nothing: they are closed with this process."""

    def drop(self, name: str) -> None:
        """Do nothing: they were not held."""


class _HeldProcess:
    """A process that the holder started."""

    def __init__(self, holder: FdHolderClient, name: str, pid: int) -> None:
        self._holder = holder
        self._name = name
        self.pid = pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    def kill(self) -> None:
        self._holder.send({"op": "kill", "name": self._name})


class FdHolderClient(Holder):
    """The connection to a holder. When the holder is killed, its processes end with it, and another one is started."""

    def __init__(self, runtime: Path, patience: float, cleanup: int) -> None:
        """``cleanup``: write end of the pipe to the crash cleanup, which runs once all copies of it are closed.

        The holder gets a copy; this one is closed by `leave` and `end`.
        """
        self._path = runtime / SOCKET
        self._patience = patience
        self._cleanup = cleanup
        self._connection: socket.socket | None = None
        self._processes: dict[str, _HeldProcess] = {}
        self._starting: dict[str, asyncio.Future[_HeldProcess]] = {}
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._own: subprocess.Popen[bytes] | None = None
        self._gone = asyncio.Event()
        self._gone.set()
        self._ending = False
        self.pid = 0
        self.on_started: Callable[[int], None] = lambda pid: None
        """Called with the process id of each holder that is started."""
        self.held: dict[str, list[int]] = {}
        """Descriptors that it held when this server connected, for the engine to adopt."""

    @classmethod
    async def connect(cls, runtime: Path, patience: float) -> FdHolderClient | None:
        """Connect to the holder that the previous server left in this folder, if there is one."""
        connection = await _connected(runtime / SOCKET)
        if connection is None:
            return None
        try:
            hello, fds = await _receive(connection)
            if hello.get("version") != fd_holder.VERSION:
                log.warning("the instances of the previous server are of another version, and are ended")
                connection.send(json.dumps({"op": "end"}).encode())
                with contextlib.suppress(OSError):
                    while await asyncio.get_running_loop().sock_recv(connection, fd_holder.MESSAGE):
                        pass
                raise OSError("the holder is of another version")
            self = cls(runtime, patience, fds[0])
            self.pid = hello["pid"]
            for _ in range(hello["count"]):
                message, fds = await _receive(connection)
                if message["op"] == "child":
                    self._processes[message["name"]] = _HeldProcess(self, message["name"], message["pid"])
                else:
                    self.held[message["name"]] = fds
        except OSError:
            connection.close()
            return None
        self._listen(connection)
        self.send({"op": "wait", "seconds": patience})
        return self

    def begin(self) -> None:
        """Start a holder."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        if self._own is not None:
            self._own.wait()  # the previous one, which was killed
        with theirs:
            self._own = subprocess.Popen(
                [
                    sys.executable, "-I", "-S", fd_holder.__file__, str(self._path), str(self._patience),
                    str(theirs.fileno()), str(self._cleanup),
                ],
                pass_fds=[theirs.fileno(), self._cleanup], start_new_session=True, cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self.pid = self._own.pid
        self._listen(ours)
        self.on_started(self.pid)

    async def start(self, name: str, command: list[str], channel: int, log: int, env: dict[str, str]) -> ZygoteProcess:
        if self._connection is None:
            self.begin()
        started: asyncio.Future[_HeldProcess] = asyncio.get_running_loop().create_future()
        self._starting[name] = started
        self.send({"op": "start", "name": name, "command": command, "env": env}, [channel, log])
        return await started

    def process(self, name: str) -> ZygoteProcess | None:
        """Return a running process by name."""
        return self._processes.get(name)

    def hold(self, name: str, fds: Sequence[int], *, wait_for_next: bool = False) -> None:
        self.send({"op": "hold", "name": name, "worth": wait_for_next}, fds)  # the key of protocol version 1

    def drop(self, name: str) -> None:
        self.send({"op": "drop", "name": name})

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message. Queue it while the socket is full."""
        if self._connection is None:
            return
        data = json.dumps(message).encode()
        if not self._unsent:
            try:
                socket.send_fds(self._connection, [data], list(fds))
            except BlockingIOError:
                asyncio.get_running_loop().add_writer(self._connection, self._write)
            except OSError:
                return  # the holder was killed, which `_read` notices
            else:
                return
        self._unsent.append((data, [os.dup(fd) for fd in fds]))

    def leave(self) -> None:
        """Disconnect, and leave everything to the next server."""
        self._disconnect()
        os.close(self._cleanup)

    async def end(self) -> None:
        """End the holder, with all that it holds and started."""
        self._ending = True
        self.send({"op": "end"})
        await self._gone.wait()
        await self.wait()
        os.close(self._cleanup)

    async def wait(self) -> int | None:
        """Wait for the end of the holder and return its exit code; None at once if another server started it."""
        return await asyncio.to_thread(self._own.wait) if self._own is not None else None

    def _listen(self, connection: socket.socket) -> None:
        self._connection = connection
        self._gone.clear()
        asyncio.get_running_loop().add_reader(connection, self._read)

    def _read(self) -> None:
        assert self._connection is not None
        while self._connection is not None:
            try:
                data, fds, _, _ = socket.recv_fds(self._connection, fd_holder.MESSAGE, fd_holder.MOST_FDS)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            for fd in fds:
                os.close(fd)  # a copy of ours, for the crash cleanup
            if not data:
                if not self._ending:
                    log.warning("the process that holds all instances has ended, and they with it; it is restarted")
                self._disconnect()
                return
            self._handle(json.loads(data))

    def _handle(self, message: dict[str, Any]) -> None:
        name = message.get("name", "")
        if message["op"] == "child":
            process = self._processes[name] = _HeldProcess(self, name, message["pid"])
            starting = self._starting.pop(name, None)
            if starting is not None and not starting.done():
                starting.set_result(process)
        elif message["op"] == "failed":
            starting = self._starting.pop(name, None)
            if starting is not None and not starting.done():
                starting.set_exception(Unavailable(message["error"]))
        elif message["op"] == "ended":
            ended = self._processes.pop(name, None)
            if ended is not None and not ended.ended.done():
                ended.ended.set_result(message["code"])

    def _write(self) -> None:
        while self._connection is not None and self._unsent:
            data, fds = self._unsent[0]
            try:
                socket.send_fds(self._connection, [data], fds)
            except BlockingIOError:
                return
            except OSError:
                pass
            self._unsent.popleft()
            for fd in fds:
                os.close(fd)
        if self._connection is not None:
            asyncio.get_running_loop().remove_writer(self._connection)

    def _disconnect(self) -> None:
        if self._connection is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._connection)
            loop.remove_writer(self._connection)
            self._connection.close()
            self._connection = None
            self._gone.set()
        while self._unsent:
            for fd in self._unsent.popleft()[1]:
                os.close(fd)
        for process in self._processes.values():
            if not process.ended.done():
                process.ended.set_result(-9)
        self._processes.clear()
        for starting in self._starting.values():
            if not starting.done():
                starting.set_exception(Unavailable("the process that holds all instances has ended; try again"))
        self._starting.clear()


async def _connected(path: Path) -> socket.socket | None:
    """Connect to a holder that greets this server. None: there is none, or another server keeps it."""
    for _ in range(int(CONNECT_SECONDS / 0.02)):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            connection.connect(str(path))
            await asyncio.wait_for(_readable(connection), CONNECT_SECONDS)
            if connection.recv(1, socket.MSG_PEEK):
                return connection
        except (FileNotFoundError, ConnectionRefusedError, TimeoutError):
            connection.close()
            return None
        except OSError:
            pass
        connection.close()  # it has not noticed yet that the previous server is gone
        await asyncio.sleep(0.02)
    return None


async def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(
                connection, fd_holder.MESSAGE, fd_holder.MOST_FDS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            await _readable(connection)
            continue
        if not data:
            raise ConnectionResetError("the holder has ended")
        return json.loads(data), fds


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, lambda: None if readable.done() else readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(connection)
