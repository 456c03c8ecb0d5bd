"""Sandboxes that begin with the author's code loaded: forks of one process that has loaded it, each on its own.

Three processes make one. The *parent* has loaded the code, behind the filter and without capabilities, and forks when
it is told to. A *builder*, which never sees that code, makes the namespaces and the files. Between the two stands the
zygote: it stops the parent's child at birth, has it enter the namespaces that were built, give up what that brought
it, and lets it go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
from collections import deque
from dataclasses import dataclass, field

from aenv.isolation import linux, ptrace, rootfs
from aenv.isolation.limits import Limits, limit_processes

FIRST_FD = 200
"""Where the parent puts the descriptors of the child to come: the builder, then those that it is to have."""
_PR_SET_DUMPABLE = 4


@dataclass
class Branch:
    """One to be made."""

    id: str
    builder: int
    """The process that holds its namespaces."""
    fds: list[int]
    """Listener, status, log, parameters."""
    cgroups: list[int]
    counted: Limits | None = None
    """Where no control group counts its processes: what its user namespace is to."""

    def close(self) -> None:
        """Let go of the descriptors; who waits for a word through them hears that there will be none."""
        for fd in (*self.fds, *self.cgroups):
            os.close(fd)
        self.fds, self.cgroups = [], []

    def give_up(self, error: OSError | None = None) -> None:
        """End what has been made of it so far."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.builder, signal.SIGKILL)
        if error is not None and self.fds:
            with contextlib.suppress(OSError):
                os.write(self.fds[1], json.dumps({"error": str(error), "code": "branch"}).encode())
        self.close()


@dataclass
class Parent:
    """A process that has loaded the author's code, as the zygote knows it."""

    pid: int
    channel: socket.socket
    waiting: deque[Branch] = field(default_factory=deque)
    asked: Branch | None = None

    def add(self, branch: Branch) -> None:
        """Fork it as soon as the others are."""
        self.waiting.append(branch)
        self.next()

    def next(self) -> None:
        """Tell it to fork the next one, unless it is at one."""
        while self.waiting and self.asked is None:
            branch = self.waiting.popleft()
            try:
                namespaces = os.pidfd_open(branch.builder)
                try:
                    ptrace.watch_forks(self.pid)
                    socket.send_fds(self.channel, [b"fork"], [namespaces, *branch.fds])
                finally:
                    os.close(namespaces)
            except OSError as error:
                branch.give_up(error)
            else:
                self.asked = branch

    def end(self) -> None:
        """It is gone, and with it all that it was to fork."""
        self.channel.close()
        for branch in [*([self.asked] if self.asked else []), *self.waiting]:
            branch.give_up()
        self.waiting.clear()


def settle(child: ptrace.Stopped, branch: Branch, fresh: int) -> int:
    """Move a child, stopped at birth, to where it belongs, and let it go on; the process that it then is.

    ``fresh`` are the namespaces that the builder made beside those of users and control groups; that of processes
    comes with a fork.

    Raises:
        OSError: it could not be; it is ended.
    """
    call = linux.number
    try:
        child.call(call("setns"), FIRST_FD, fresh | linux.CLONE_NEWUSER | linux.CLONE_NEWCGROUP)
        child = child.fork_again(linux.CLONE_NEWPID)
        at = child.scratch(_WORDS)
        for source, target, kind, flags in rootfs.PROC:
            place = [at + _WORDS.index(b"%s\0" % word.encode()) if word else 0 for word in (source, target, kind)]
            child.call(call("mount"), *place, flags, 0)
        child.call(call("setsid"))
        child.drop_bounding_set()
        child.call(call("capset"), at, at + 8)
        child.call(call("prctl"), _PR_SET_DUMPABLE, 1, 0, 0, 0)
        for fd in branch.cgroups:
            os.write(fd, str(child.pid).encode())
        if branch.counted is not None:
            limit_processes(branch.counted, child.pid)
    except OSError:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            child.kill()
        raise
    child.go_on()
    return child.pid


_WORDS = struct.pack("=IiQQQ", linux.CAP_VERSION_3, 0, 0, 0, 0) + b"".join(
    b"%s\0" % word.encode() for mount in rootfs.PROC for word in mount[:3] if word
)
"""What system calls point at: no capabilities at all, and names."""


def fork_on_demand(channel: socket.socket) -> list[int]:
    """In the parent: fork whenever told to. Returns in the children only, with the descriptors of each."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 16, 8)
        if not data:
            os._exit(0)
        places = range(FIRST_FD, FIRST_FD + len(fds))
        for fd, place in zip(fds, places, strict=True):
            os.dup2(fd, place, inheritable=False)
            os.close(fd)
        if os.fork() == 0:
            break
        for place in places:
            os.close(place)
    channel.close()
    os.close(FIRST_FD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return list(places)[1:]
