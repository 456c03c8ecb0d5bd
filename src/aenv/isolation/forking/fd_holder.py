"""Holds on to what a server has made, so that it can outlive the server: for some seconds, until the next one comes.

It is the parent of a server's warm parents, and has a second descriptor of everything by which the server reaches
them and what they forked. When the server's connection ends, however that came about, nothing else does: who connects
next is given it all. When nobody comes in time this process ends, and the kernel ends all that it had started.

It looks into nothing that it holds, so that servers of other versions can use it. Run as a script of its own, with
the standard library alone, so that it costs little while it waits.
"""

import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

VERSION = 1
"""Of what is said here. Every version understands ``end``."""
MESSAGE = 1 << 16
MOST_FDS = 16
SEND_SECONDS = 10
"""A server that does not listen for so long is none."""


class FdHolder:
    """``patience``: seconds to wait for the next server. ``janitor``: told which processes were servers here."""

    def __init__(self, path: str, patience: float, owner: socket.socket, janitor: int) -> None:
        self._patience = patience
        self._janitor = janitor
        self._held: dict[str, tuple[bool, list[int]]] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._owner: socket.socket | None = None
        self._deadline = 0.0
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of one before us, which was killed
        self._listener.bind(path)
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: os.read(self._woken, 4096))
        self._belong_to(owner)

    def run(self) -> None:
        """Until nobody comes, or somebody says so."""
        while self._owner is not None or time.monotonic() < self._deadline:
            left = None if self._owner is not None else max(0.0, self._deadline - time.monotonic())
            for key, _ in self._selector.select(left):
                key.data()
            self._reap()

    # --- owners

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user not in (os.geteuid(), 0) or self._owner is not None:
            connection.close()
            return
        with contextlib.suppress(OSError):
            os.write(self._janitor, b"%d\n" % pid)
        self._belong_to(connection)

    def _belong_to(self, connection: socket.socket) -> None:
        """Give a server all that there is."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self._owner = connection
        self._selector.register(connection, selectors.EVENT_READ, self._hear)
        count = len(self._children) + len(self._held)
        self._say({"op": "hello", "version": VERSION, "pid": os.getpid(), "count": count}, [self._janitor])
        for name, child in self._children.items():
            self._say({"op": "child", "name": name, "pid": child.pid})
        for name, (_, fds) in self._held.items():
            self._say({"op": "held", "name": name}, fds)

    def _alone(self) -> None:
        """The server is gone. Without anything that is worth it, there is nobody to wait for."""
        if self._owner is None:
            return
        self._selector.unregister(self._owner)
        self._owner.close()
        self._owner = None
        wait = self._patience if any(worth for worth, _ in self._held.values()) else 0.0
        self._deadline = time.monotonic() + wait

    def _say(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        if self._owner is None:
            return
        try:
            socket.send_fds(self._owner, [json.dumps(message).encode()], fds or [])
        except OSError:
            self._alone()

    def _hear(self) -> None:
        assert self._owner is not None
        try:
            data, fds, flags, _ = socket.recv_fds(self._owner, MESSAGE, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            data, fds, flags = b"", [], 0
        if not data:
            self._alone()
            return
        message = json.loads(data)
        op, name = message["op"], message.get("name", "")
        if op == "end":
            sys.exit(0)
        elif op == "wait":
            self._patience = message["seconds"]
        elif op == "start":
            self._start(name, message, fds)
        elif op == "kill" and name in self._children:
            self._children[name].kill()
        elif op == "hold" and not flags & socket.MSG_CTRUNC:
            self._drop(name)
            self._held[name] = (bool(message.get("worth")), fds)
            return
        elif op == "drop":
            self._drop(name)
        for fd in fds:
            os.close(fd)

    # --- what is held

    def _start(self, name: str, message: dict[str, Any], fds: list[int]) -> None:
        """Two descriptors come with it: one that the program gets as its last argument, and one to write its log to."""
        channel, log = fds
        try:
            child = subprocess.Popen(
                [*message["command"], str(channel)], pass_fds=[channel],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=message["env"],
            )  # fmt: skip
        except OSError as error:
            self._say({"op": "failed", "name": name, "error": str(error)})
        else:
            self._children[name] = child
            self._say({"op": "child", "name": name, "pid": child.pid})

    def _drop(self, name: str) -> None:
        for fd in self._held.pop(name, (False, []))[1]:
            os.close(fd)

    def _reap(self) -> None:
        for name, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[name]
                self._say({"op": "ended", "name": name, "code": code})


def main() -> None:
    """``keeper.py SOCKET SECONDS OWNER JANITOR``: the last two are descriptors."""
    path, patience, owner, janitor = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    FdHolder(path, float(patience), socket.socket(fileno=int(owner)), int(janitor)).run()


if __name__ == "__main__":
    main()
