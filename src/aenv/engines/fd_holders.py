"""With whom an engine leaves what it has made: with nobody, or with a keeper for the server that comes after this one.

A keeper (`aenv.isolation.forking.fd_holder`) is a process that starts an engine's programs and holds a second
descriptor of all that matters. Here is the server's end of the connection to it.
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
"""For a keeper to see that the server before us is gone."""


class Process(Protocol):
    """A program that was started."""

    @property
    def pid(self) -> int: ...
    async def wait(self) -> int: ...
    def kill(self) -> None: ...


class Holder(ABC):
    """Starts programs, and holds on to descriptors."""

    @abstractmethod
    async def start(self, name: str, command: list[str], channel: int, log: int, env: dict[str, str]) -> Process:
        """Start a program that gets ``channel`` as its last argument. It ends with the holder.

        Raises:
            Unavailable: it cannot be.
        """

    @abstractmethod
    def hold(self, name: str, fds: Sequence[int], *, worth: bool = False) -> None:
        """Hold these in place of what was held under the name before. ``worth``: waiting for the next server."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Hold them no more."""


class NoHolder(Holder):
    """What is made ends with this process."""

    async def start(self, name: str, command: list[str], channel: int, log: int, env: dict[str, str]) -> Process:
        return await asyncio.create_subprocess_exec(
            *command, str(channel), pass_fds=[channel], stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            cwd="/", env=env,
        )  # fmt: skip

    def hold(self, name: str, fds: Sequence[int], *, worth: bool = False) -> None:
        """They are closed with this process."""

    def drop(self, name: str) -> None:
        """They never were held."""


class _Kept:
    """A program that a keeper started."""

    def __init__(self, keeper: FdHolderClient, name: str, pid: int) -> None:
        self._keeper = keeper
        self._name = name
        self.pid = pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    def kill(self) -> None:
        self._keeper.say({"op": "kill", "name": self._name})


class FdHolderClient(Holder):
    """The connection to a keeper. Should that be killed, all that it started is gone, and another is started."""

    def __init__(self, runtime: Path, patience: float, janitor: int) -> None:
        """``janitor``: a descriptor that keeps the janitor from tidying up; it is closed at the end."""
        self._path = runtime / SOCKET
        self._patience = patience
        self._janitor = janitor
        self._connection: socket.socket | None = None
        self._processes: dict[str, _Kept] = {}
        self._starting: dict[str, asyncio.Future[_Kept]] = {}
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._own: subprocess.Popen[bytes] | None = None
        self._gone = asyncio.Event()
        self._gone.set()
        self._ending = False
        self.pid = 0
        self.on_begun: Callable[[int], None] = lambda pid: None
        """Told the process id of each one that is started."""
        self.held: dict[str, list[int]] = {}
        """What it held when we came; for the engine to take."""

    @classmethod
    async def found(cls, runtime: Path, patience: float) -> FdHolderClient | None:
        """The one that a server before us has left in this folder, if it is there still."""
        connection = await _connected(runtime / SOCKET)
        if connection is None:
            return None
        try:
            hello, fds = await _receive(connection)
            if hello.get("version") != fd_holder.VERSION:
                log.warning("what the server before this one left is of another version: it is ended")
                connection.send(json.dumps({"op": "end"}).encode())
                with contextlib.suppress(OSError):
                    while await asyncio.get_running_loop().sock_recv(connection, fd_holder.MESSAGE):
                        pass
                raise OSError("it is of another version")
            self = cls(runtime, patience, fds[0])
            self.pid = hello["pid"]
            for _ in range(hello["count"]):
                message, fds = await _receive(connection)
                if message["op"] == "child":
                    self._processes[message["name"]] = _Kept(self, message["name"], message["pid"])
                else:
                    self.held[message["name"]] = fds
        except OSError:
            connection.close()
            return None
        self._listen(connection)
        self.say({"op": "wait", "seconds": patience})
        return self

    def begin(self) -> None:
        """Start one."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        if self._own is not None:
            self._own.wait()  # the one before, which was killed
        with theirs:
            self._own = subprocess.Popen(
                [
                    sys.executable, "-I", "-S", fd_holder.__file__, str(self._path), str(self._patience),
                    str(theirs.fileno()), str(self._janitor),
                ],
                pass_fds=[theirs.fileno(), self._janitor], start_new_session=True, cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self.pid = self._own.pid
        self._listen(ours)
        self.on_begun(self.pid)

    async def start(self, name: str, command: list[str], channel: int, log: int, env: dict[str, str]) -> Process:
        if self._connection is None:
            self.begin()
        came: asyncio.Future[_Kept] = asyncio.get_running_loop().create_future()
        self._starting[name] = came
        self.say({"op": "start", "name": name, "command": command, "env": env}, [channel, log])
        return await came

    def process(self, name: str) -> Process | None:
        """One that runs already."""
        return self._processes.get(name)

    def hold(self, name: str, fds: Sequence[int], *, worth: bool = False) -> None:
        self.say({"op": "hold", "name": name, "worth": worth}, fds)

    def drop(self, name: str) -> None:
        self.say({"op": "drop", "name": name})

    def say(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Tell it. What it has no room for yet waits here."""
        if self._connection is None:
            return
        data = json.dumps(message).encode()
        if not self._unsent:
            try:
                socket.send_fds(self._connection, [data], list(fds))
            except BlockingIOError:
                asyncio.get_running_loop().add_writer(self._connection, self._write)
            except OSError:
                return  # it was killed: we hear of that where we listen
            else:
                return
        self._unsent.append((data, [os.dup(fd) for fd in fds]))

    def leave(self) -> None:
        """Go, and leave everything to the next server."""
        self._hang_up()
        os.close(self._janitor)

    async def end(self) -> None:
        """End it, with all that it holds."""
        self._ending = True
        self.say({"op": "end"})
        await self._gone.wait()
        if self._own is not None:
            await asyncio.to_thread(self._own.wait)
        os.close(self._janitor)

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
                os.close(fd)  # the janitor's, which we have
            if not data:
                if not self._ending:
                    log.warning("the keeper has ended, and all instances with it; there will be another")
                self._hang_up()
                return
            self._handle(json.loads(data))

    def _handle(self, message: dict[str, Any]) -> None:
        name = message.get("name", "")
        if message["op"] == "child":
            process = self._processes[name] = _Kept(self, name, message["pid"])
            came = self._starting.pop(name, None)
            if came is not None and not came.done():
                came.set_result(process)
        elif message["op"] == "failed":
            came = self._starting.pop(name, None)
            if came is not None and not came.done():
                came.set_exception(Unavailable(message["error"]))
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

    def _hang_up(self) -> None:
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
        for came in self._starting.values():
            if not came.done():
                came.set_exception(Unavailable("the keeper has ended; try again"))
        self._starting.clear()


async def _connected(path: Path) -> socket.socket | None:
    """To a keeper that says hello; None when there is none, or it belongs to somebody else for good."""
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
        connection.close()  # it has not seen yet that the server before us is gone
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
            raise ConnectionResetError("the keeper has ended")
        return json.loads(data), fds


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, lambda: None if came.done() else came.set_result(None))
    try:
        await came
    finally:
        loop.remove_reader(connection)
