"""Sandboxes that begin with the author's code loaded: forks of one process that has loaded it, each on its own.

Three processes make one. The *parent* has loaded the code, behind the filter and without capabilities, and forks when
it is told to, into new namespaces. A *builder*, which never sees that code, puts into them what belongs there. Between
the two stands the zygote: it stops the parent's child at birth, has it take over what was built and give up every
capability that the new namespaces brought it, and only then lets it go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from aenv.isolation import linux, ptrace, rootfs
from aenv.isolation.limits import Limits, limit_processes

FORKED = linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
"""The namespaces that a child is born with, beside that of the network, unless it stays in the host's."""
BUILT = linux.CLONE_NEWNS | linux.CLONE_NEWCGROUP
"""Those that the builder makes: the parent's files are not what a child is to have."""
FIRST_FD = 200
"""Where the parent puts the descriptors of the child to come: the builder, then those that it is to have."""
MESSAGE = 4096


@dataclass
class Builder:
    """A builder, as the zygote knows it."""

    link: socket.socket
    pidfd: int = -1
    """What the child enters its namespaces by."""

    def close(self) -> None:
        """Let it end."""
        self.link.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)


@dataclass
class Branch:
    """One to be made."""

    id: str
    limits: dict[str, float]
    fds: list[int]
    """Listener, status, log, parameters."""
    cgroups: list[int]
    network: str = "loopback"
    channel: list[int] = field(default_factory=list)
    """What the builder hands the listening socket of an ``egress`` network out through."""
    counted: bool = False
    """No control group counts its processes, but its user namespace does."""
    builder: Builder | None = None
    child: ptrace.Stopped | None = None

    def born(self, child: ptrace.Stopped) -> None:
        """Show the child to the builder."""
        self.child = child
        assert self.builder is not None
        fd = os.pidfd_open(child.pid)
        try:
            told = {"limits": self.limits, "network": self.network}
            socket.send_fds(self.builder.link, [json.dumps(told).encode()], [fd, *self.channel, *self.cgroups])
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of everything: who waits for a word hears that there will be none."""
        if self.builder is not None:
            self.builder.close()
        for fd in (*self.fds, *self.cgroups, *self.channel):
            os.close(fd)
        self.fds, self.cgroups, self.channel, self.builder = [], [], [], None

    def give_up(self, why: str) -> None:
        """End what has been made of it so far."""
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                self.child.kill()
        if self.fds:
            with contextlib.suppress(OSError):
                os.write(self.fds[1], json.dumps({"error": why, "code": "branch"}).encode())
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
                ptrace.watch_forks(self.pid)
                assert branch.builder is not None
                socket.send_fds(self.channel, [b"fork"], [branch.builder.pidfd, *branch.fds, *branch.cgroups])
            except OSError as error:
                branch.give_up(str(error))
            else:
                self.asked = branch

    def end(self) -> None:
        """It is gone, and with it all that it was to fork."""
        self.channel.close()
        for branch in [*([self.asked] if self.asked else []), *self.waiting]:
            branch.give_up("the process that it was to be forked from has ended")
        self.waiting.clear()


def settle(branch: Branch) -> int:
    """Have a child, stopped at birth, take over what was built for it, and let it go on; its process id.

    ``fresh`` are the namespaces that the builder made beside those of users and control groups; that of processes
    comes with a fork.

    Raises:
        OSError: it could not be.
    """
    child = branch.child
    assert child is not None
    first = FIRST_FD + 1 + len(branch.fds)
    # One that moves itself waits for nobody; to move another one waits until every CPU has been through the scheduler.
    joins = [(linux.number("write"), fd, _word("0"), 1) for fd in range(first, first + len(branch.cgroups))]
    child.do([*joins, *_SETTLING], _WORDS)
    if branch.counted:
        limit_processes(Limits(**branch.limits), child.pid)  # type: ignore[arg-type]
    child.go_on()
    return child.pid


_NO_CAPABILITIES = struct.pack("=IiQQQ", linux.CAP_VERSION_3, 0, 0, 0, 0)
_WORDS = _NO_CAPABILITIES + b"0\0" + b"".join(b"%s\0" % word.encode() for m in rootfs.PROC for word in m[:3] if word)


def _word(word: str | None) -> int:
    return -1 - _WORDS.index(b"%s\0" % word.encode()) if word else 0


_PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 4, 24
_SETTLING = [
    (linux.number("setns"), FIRST_FD, BUILT),
    *((linux.number("mount"), _word(m[0]), _word(m[1]), _word(m[2]), m[3], 0) for m in rootfs.PROC),
    (linux.number("setsid"),),
    *((linux.number("prctl"), _PR_CAPBSET_DROP, capability) for capability in linux.capabilities()),
    (linux.number("capset"), -1, -1 - 8),
    (linux.number("prctl"), _PR_SET_DUMPABLE, 1),
]
"""System calls; what they point at is in _WORDS, of which -1 is the beginning."""


def fork_on_demand(channel: socket.socket, count: int, own_network: int) -> list[int]:
    """In the parent: fork whenever told to. Returns in the children only, with ``count`` descriptors for each.

    ``own_network`` is CLONE_NEWNET, or nothing where they stay in the host's.
    """
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 16, 16)
        if not data:
            os._exit(0)
        places = range(FIRST_FD, FIRST_FD + len(fds))
        for fd, place in zip(fds, places, strict=True):
            os.dup2(fd, place, inheritable=False)
            os.close(fd)
        if linux.fork_into(FORKED | own_network | linux.CLONE_PARENT) == 0:  # the zygote waits for them
            break
        for place in places:
            os.close(place)
    channel.close()
    mine = list(places)[1 : 1 + count]
    for place in places:
        if place not in mine:
            os.close(place)
    return mine


Furnish = Callable[[bytes, list[int]], None]


def build_on_demand(channel: socket.socket, furnish: Furnish, own_network: int) -> None:
    """In a process that is small, which makes forking it cheap: fork builders. Never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(channel, MESSAGE, 1)
        if not request:
            os._exit(0)
        link = socket.socket(fileno=fds[0])
        if os.fork() == 0:
            _build(link, furnish, own_network)
        link.close()


def _build(link: socket.socket, furnish: Furnish, own_network: int) -> None:
    """In a builder: wait for the child, then put into its namespaces what belongs there. Never returns."""
    try:
        socket.send_fds(link, [b"here"], [os.pidfd_open(os.getpid())])
        told, fds, _, _ = socket.recv_fds(link, MESSAGE, 8)
        if fds:
            child, *rest = fds
            linux.setns(child, linux.CLONE_NEWUSER)
            linux.map_user(rootfs.USER_ID, rootfs.USER_ID, rootfs.USER_ID)
            linux.setns(child, FORKED & ~(linux.CLONE_NEWUSER | linux.CLONE_NEWPID) | own_network)
            linux.unshare(linux.CLONE_NEWNS)
            furnish(told, rest)
            link.send(b"done")
            link.recv(1)  # until the child has it
    except OSError as error:
        with contextlib.suppress(OSError):
            link.send(str(error).encode())
    finally:
        os._exit(0)
