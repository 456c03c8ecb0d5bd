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
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from aenv.isolation import linux, network, ptrace, rootfs
from aenv.isolation.builder import Builder, waiting
from aenv.isolation.limits import Limits, counts_processes_apart, limit_processes
from aenv.isolation.network import Mode
from aenv.isolation.plan import Block, Later, Outcome, Plan

OWN = linux.CLONE_NEWNS | linux.CLONE_NEWCGROUP
"""The namespaces that a child is not born with: the parent's files and control groups are not what it is to have. The
first is built for it, the second it makes once it has joined its groups."""
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 4, 24
FIRST_FD = 200
"""Where the parent puts the descriptors of the child to come: the builder, then those that it is to have."""

IDLE = 16
"""Builders' memories that are kept."""
Kind = tuple[int, Mode]
"""How much may be written to its files, and what its network is."""
Furnish = Callable[[Plan, int, Mode], Outcome | None]
"""Adds to a plan what new namespaces of a kind need; see `network.settle`."""


@dataclass
class Branch:
    """One to be made."""

    id: str
    limits: Limits
    network: Mode
    fds: list[int]
    """Listener, status, log, parameters."""
    channel: list[int]
    """Through which its door to the network is handed out, if it has one."""
    cgroups: list[int]
    builder: Builder | None = None
    child: ptrace.Stopped | None = None
    child_fd: int = -1

    def born(self, child: ptrace.Stopped) -> None:
        """Show the child to the builder."""
        self.child = child
        assert self.builder is not None
        self.child_fd = os.pidfd_open(child.pid)
        self.builder.go(child=self.child_fd)

    @property
    def kind(self) -> Kind:
        """What has to be built for it."""
        return self.limits.disk, self.network

    @property
    def given_up(self) -> bool:
        """Whether it is not to be any more."""
        return not self.fds

    def close(self) -> None:
        """Let go of everything: who waits for a word hears that there will be none."""
        for fd in (*self.fds, *self.channel, *self.cgroups, *([self.child_fd] if self.child_fd >= 0 else [])):
            os.close(fd)
        self.fds, self.channel, self.cgroups, self.child_fd = [], [], [], -1

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
    come: Callable[[Branch], Builder]
    """Has a builder come for one."""
    give_up: Callable[[Branch, str], None]
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
            if branch.given_up:
                continue
            try:
                builder = self.come(branch)
                ptrace.watch_forks(self.pid)
                socket.send_fds(self.channel, [b"fork"], [builder.pidfd, *branch.fds, *branch.cgroups])
            except OSError as error:
                self.give_up(branch, str(error))
            else:
                self.asked = branch

    def end(self) -> None:
        """It is gone, and with it all that it was to fork."""
        self.channel.close()
        for branch in [*([self.asked] if self.asked else []), *self.waiting]:
            self.give_up(branch, "the process that it was to be forked from has ended")
        self.waiting.clear()


class Builders:
    """Those who build for the children of one zygote, by what they build."""

    def __init__(self, namespaces: int, furnish: Furnish) -> None:
        self._born_with = namespaces & ~OWN
        self._furnish = furnish
        self._idle: dict[Kind, list[Builder]] = {}
        self.ending: set[int] = set()
        """Processes that are still to be waited for."""

    def come(self, branch: Branch) -> Builder:
        """One for this child to be."""
        idle = self._idle.get(branch.kind)
        builder = branch.builder = idle.pop() if idle else self._new(*branch.kind)
        builder.come()
        return builder

    def leave(self, branch: Branch) -> None:
        """It has done its work; the next of its kind may have its memory."""
        builder, branch.builder = branch.builder, None
        assert builder is not None
        if sum(map(len, self._idle.values())) < IDLE:
            self.ending.add(builder.leave())
            self._idle.setdefault(branch.kind, []).append(builder)
        else:
            builder.close()

    def _new(self, disk: int, mode: Mode) -> Builder:
        plan = waiting()
        plan.do("setns", Later("child"), linux.CLONE_NEWUSER)
        for name, text in linux.user_maps(rootfs.USER_ID, rootfs.USER_ID, rootfs.USER_ID):
            plan.write(f"/proc/self/{name}", text)
        plan.do("setns", Later("child"), self._born_with)
        plan.do("unshare", linux.CLONE_NEWNS)
        return Builder(plan, door=self._furnish(plan, disk, mode))


def settle(branch: Branch) -> int:
    """Have a child, stopped at birth, take over what was built for it, and let it go on; its process id.

    Raises:
        OSError: it could not be.
    """
    child, builder = branch.child, branch.builder
    assert child is not None
    assert builder is not None
    builder.check()
    if builder.door is not None and branch.channel:
        network.hand_over(builder.result(builder.door), branch.channel[0])
    child.do(_settling(FIRST_FD + 1 + len(branch.fds), len(branch.cgroups)))
    if not branch.cgroups and counts_processes_apart():
        limit_processes(branch.limits, child.pid)
    child.go_on()
    return child.pid


@cache
def _settling(first: int, cgroups: int) -> Plan:
    """What a child does at its birth. ``first``: of the descriptors that it joins its control groups by."""
    plan = Plan()
    # One that moves itself waits for nobody; to move another one waits until every CPU has been through the scheduler.
    for fd in range(first, first + cgroups):
        plan.do("write", fd, "0", 1, what="joining a control group")
    plan.do("unshare", linux.CLONE_NEWCGROUP)
    plan.do("setns", FIRST_FD, linux.CLONE_NEWNS)
    for source, target, kind, flags in rootfs.PROC:
        plan.mount(source, target, kind or "", flags)
    plan.do("setsid")
    for capability in linux.capabilities():
        plan.do("prctl", _PR_CAPBSET_DROP, capability)
    none = struct.pack("=IiQQQ", linux.CAP_VERSION_3, 0, 0, 0, 0)
    plan.do("capset", Block(none[:8]), Block(none[8:]))
    plan.do("prctl", _PR_SET_DUMPABLE, 1)
    return plan


def fork_on_demand(channel: socket.socket, namespaces: int, count: int) -> list[int]:
    """In the parent: fork whenever told to, into new namespaces but for those that are built. Returns in the children
    only, with ``count`` descriptors for each.
    """
    born_with = namespaces & ~OWN | linux.CLONE_NEWUSER | linux.CLONE_NEWPID
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 16, 16)
        if not data:
            os._exit(0)
        places = range(FIRST_FD, FIRST_FD + len(fds))
        for fd, place in zip(fds, places, strict=True):
            os.dup2(fd, place, inheritable=False)
            os.close(fd)
        if linux.fork_into(born_with | linux.CLONE_PARENT) == 0:  # the zygote waits for them
            break
        for place in places:
            os.close(place)
    channel.close()
    mine = list(places)[1 : 1 + count]
    for place in places:
        if place not in mine:
            os.close(place)
    return mine
