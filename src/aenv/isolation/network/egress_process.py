"""Start and steer the egress proxy (`egress_proxy`): one process that carries what sandboxes may send out.

It is started for the first sandbox that has a door and ends with the engine. Should it die, the next one takes over
all doors: the engine keeps the listening sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable

from aenv.isolation.network.egress_proxy import MESSAGE
from aenv.tracing.logging import getLogger

log = getLogger("egress")

AGAIN_SECONDS = 1.0
"""Between two processes, should one end at once."""


class EgressDoor:
    """One sandbox's, from before its network is there until it is gone."""

    def __init__(self, name: str, allow: tuple[str, ...], egress: EgressProcess) -> None:
        self.id = name
        self.allow = allow
        self.listener = -1
        self._egress = egress
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._came: asyncio.Future[int] | None = None

    @property
    def channel(self) -> int:
        """What the sandbox is to send its listening socket through."""
        return self._theirs.fileno()

    async def open(self) -> None:
        """Wait for the sandbox's socket, and have it served. Where no sandbox comes to be, it returns all the same."""
        self._theirs.close()
        loop = asyncio.get_running_loop()
        self._came = loop.create_future()
        loop.add_reader(self._ours, self._read)
        try:
            self.listener = await self._came
        finally:
            loop.remove_reader(self._ours)
            self._ours.close()
        if self.listener >= 0:
            await self._egress.add(self)

    def handed_over(self, listener: int) -> None:
        """The sandbox has been there for long, and this is its socket."""
        self.listener = listener
        self._theirs.close()
        self._ours.close()

    def close(self) -> None:
        """Hang up on all that goes through it."""
        self._theirs.close()
        if self._came is None:
            self._ours.close()
        elif not self._came.done():
            self._came.set_result(-1)
        self._egress.remove(self)
        if self.listener >= 0:
            os.close(self.listener)
            self.listener = -1

    def _read(self) -> None:
        assert self._came is not None
        try:
            _, fds, _, _ = socket.recv_fds(self._ours, 16, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            fds = []
        if self._came.done():
            for fd in fds:
                os.close(fd)
        else:
            self._came.set_result(fds[0] if fds else -1)


class EgressProcess:
    """Opens and closes doors. ``say`` hears what a sandbox was refused."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._doors: dict[str, EgressDoor] = {}
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._again: asyncio.Task[None] | None = None
        self._closed = False

    def door(self, name: str, allow: tuple[str, ...]) -> EgressDoor:
        """For a sandbox that is about to be made; whatever becomes of it, the door must be closed."""
        return EgressDoor(name, allow, self)

    async def take_over(self, name: str, allow: tuple[str, ...], listener: int) -> EgressDoor:
        """The door of a sandbox that an engine before this one has made."""
        door = EgressDoor(name, allow, self)
        door.handed_over(listener)
        await self.add(door)
        return door

    async def add(self, door: EgressDoor) -> None:
        """Serve it from now on."""
        self._doors[door.id] = door
        await self._start()
        await self._send({"op": "open", "id": door.id, "allow": door.allow}, [door.listener])

    def remove(self, door: EgressDoor) -> None:
        """Serve it no more."""
        if self._doors.pop(door.id, None) is not None:
            self._tell_closed(door.id)

    def _tell_closed(self, name: str) -> None:
        if self._control is None or name in self._doors:
            return
        try:
            self._control.send(json.dumps({"op": "close", "id": name}).encode())
        except BlockingIOError:
            asyncio.get_running_loop().call_later(0.05, self._tell_closed, name)
        except OSError:
            return  # it has died, and all doors with it

    async def end(self) -> None:
        """Close all doors, and end the process."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)
        self._hang_up()
        for door in list(self._doors.values()):
            door.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _start(self) -> None:
        async with self._starting:
            if self._control is not None or self._closed:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "aenv.isolation.network.egress_proxy", str(theirs.fileno()),
                    pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, cwd="/",
                )  # fmt: skip
            self._control = ours
            asyncio.get_running_loop().add_reader(ours, self._read)

    async def _send(self, message: dict[str, object], fds: list[int]) -> None:
        data = json.dumps(message).encode()
        while self._control is not None and not self._closed:
            try:
                socket.send_fds(self._control, [data], fds)
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError:
                return  # it has died: the next one is told of all doors
            else:
                return

    def _read(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            message = json.loads(data)
            self._say(message["id"], message["text"])
            return
        self._hang_up()
        if self._doors and not self._closed:
            log.warning("the process that carries sandboxes' connections has ended; another takes over")
            self._again = asyncio.create_task(self._take_over())

    def _hang_up(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None

    async def _take_over(self) -> None:
        if self._process is not None:
            await self._process.wait()
        await asyncio.sleep(AGAIN_SECONDS)
        await self._start()
        for door in list(self._doors.values()):
            await self._send({"op": "open", "id": door.id, "allow": door.allow}, [door.listener])
