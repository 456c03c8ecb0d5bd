"""The fd holder: a process that holds a server's file descriptors for a handover to the next server.

It is the parent process of the server's zygotes, and has a duplicate of every descriptor by which the server reaches
them and their sandboxes. When the server's connection ends, for whatever reason, nothing else ends: the next server
that connects gets all descriptors. If none connects in time this process ends, and the kernel ends all that it had
started.

It does not interpret what it holds, so servers of other versions can use it. It runs as a script with the standard
library alone, so that it costs little while it waits.
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
"""Version of the protocol. Every version understands ``end``."""
MESSAGE = 1 << 16
MOST_FDS = 16
SEND_SECONDS = 10
"""Treat a server that blocks sends for this long as gone."""


class FdHolder:
    """Holds descriptors for one server at a time.

    ``patience``: seconds to wait for the next server. ``cleanup``: write end of the pipe to the crash cleanup, which
    runs once all copies of it are closed, and reads the process id of every server from it.
    """

    def __init__(self, path: str, patience: float, owner: socket.socket, cleanup: int) -> None:
        self._patience = patience
        self._cleanup = cleanup
        self._held: dict[str, tuple[bool, list[int]]] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._owner: socket.socket | None = None
        self._deadline = 0.0
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of an earlier holder, which was killed
        self._listener.bind(path)
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: os.read(self._woken, 4096))
        self._serve(owner)

    def run(self) -> None:
        """Run until no server comes in time, or a server says ``end``."""
        while self._owner is not None or time.monotonic() < self._deadline:
            left = None if self._owner is not None else max(0.0, self._deadline - time.monotonic())
            for key, _ in self._selector.select(left):
                key.data()
            self._reap()

    # --- servers

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user not in (os.geteuid(), 0) or self._owner is not None:
            connection.close()
            return
        with contextlib.suppress(OSError):
            os.write(self._cleanup, b"%d\n" % pid)
        self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        """Send a server everything that is held."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self._owner = connection
        self._selector.register(connection, selectors.EVENT_READ, self._receive)
        count = len(self._children) + len(self._held)
        self._send({"op": "hello", "version": VERSION, "pid": os.getpid(), "count": count}, [self._cleanup])
        for name, child in self._children.items():
            self._send({"op": "child", "name": name, "pid": child.pid})
        for name, (_, fds) in self._held.items():
            self._send({"op": "held", "name": name}, fds)

    def _disconnect(self) -> None:
        """Note that the server is gone. Wait for the next one only if held descriptors ask for it."""
        if self._owner is None:
            return
        self._selector.unregister(self._owner)
        self._owner.close()
        self._owner = None
        wait = self._patience if any(waits for waits, _ in self._held.values()) else 0.0
        self._deadline = time.monotonic() + wait

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        if self._owner is None:
            return
        try:
            socket.send_fds(self._owner, [json.dumps(message).encode()], fds or [])
        except OSError:
            self._disconnect()

    def _receive(self) -> None:
        assert self._owner is not None
        try:
            data, fds, flags, _ = socket.recv_fds(self._owner, MESSAGE, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            data, fds, flags = b"", [], 0
        if not data:
            self._disconnect()
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
            self._held[name] = (bool(message.get("worth")), fds)  # "worth" means: wait for the next server
            return
        elif op == "drop":
            self._drop(name)
        for fd in fds:
            os.close(fd)

    # --- descriptors and processes

    def _start(self, name: str, message: dict[str, Any], fds: list[int]) -> None:
        """Start a process. Two descriptors come with the message: its last argument, and its log."""
        channel, log = fds
        try:
            child = subprocess.Popen(
                [*message["command"], str(channel)], pass_fds=[channel],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=message["env"],
            )  # fmt: skip
        except OSError as error:
            self._send({"op": "failed", "name": name, "error": str(error)})
        else:
            self._children[name] = child
            self._send({"op": "child", "name": name, "pid": child.pid})

    def _drop(self, name: str) -> None:
        for fd in self._held.pop(name, (False, []))[1]:
            os.close(fd)

    def _reap(self) -> None:
        for name, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[name]
                self._send({"op": "ended", "name": name, "code": code})


def main() -> None:
    """Run ``fd_holder.py SOCKET SECONDS SERVER CLEANUP``: the last two are descriptors."""
    path, patience, owner, cleanup = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    FdHolder(path, float(patience), socket.socket(fileno=int(owner)), int(cleanup)).run()


if __name__ == "__main__":
    main()
