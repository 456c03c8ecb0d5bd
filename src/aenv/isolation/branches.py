"""Sandboxes that begin with the author's code loaded: forks of one process that has loaded it, each on its own.

Three processes make one. The *parent* has loaded the code, behind the filter and without capabilities, and forks when
it is told to, into new namespaces. A *builder*, which never sees that code, puts into them what belongs there. Between
the two stands the zygote: it stops the parent's child at birth, has it take over what was built and give up every
capability that the new namespaces brought it, and only then lets it go on.

Until then nothing tells one child from another, so one is made ahead: a *newborn*, stopped before its first
instruction, which has no memory of its own yet and costs nothing. Who asks for a sandbox need not wait for the fork.
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

from aenv.isolation import forkable, linux, network, ptrace, rootfs
from aenv.isolation.builder import Builder, waiting
from aenv.isolation.limits import Limits, counts_processes_apart, limit_processes
from aenv.isolation.network import Mode
from aenv.isolation.plan import Block, Later, Outcome, Plan

OWN = linux.CLONE_NEWNS | linux.CLONE_NEWCGROUP
"""The namespaces that a child is not born with: the parent's files and control groups are not what it is to have. The
first is built for it, the second it makes once it has joined its groups."""
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 4, 24
_CHANNEL, _BUILDER, _MAILBOX = 199, 200, 201
"""Where the parent has what it hears through, and what the child to come is born with."""
_LISTENER, _STATUS, _LOG, _PARAMETERS, _GROUPS = range(3, 8)
"""Where a child finds what comes by mail: the kernel takes the first numbers that are free. The last is the first of
those that it joins its control groups by."""
_MOST_MAIL = 16
_CONTROL = 32
"""Where struct msghdr points at what comes beside the data."""

IDLE = 16
"""Builders' memories that are kept."""
AHEAD = 1
"""Newborns that are made before anybody asks."""
Kind = tuple[int, Mode]
"""How much may be written to its files, and what its network is."""
Furnish = Callable[[Plan, int, Mode], Outcome | None]
"""Adds to a plan what new namespaces of a kind need; see `network.settle`."""


@dataclass
class Branch:
    """One that is asked for."""

    id: str
    limits: Limits
    fds: list[int]
    """Listener, status, log, parameters."""
    channel: list[int]
    """Through which its door to the network is handed out, if it has one."""
    cgroups: list[int]

    @property
    def given_up(self) -> bool:
        """Whether it is not to be any more."""
        return not self.fds

    def close(self) -> None:
        """Let go of everything: who waits for a word hears that there will be none."""
        for fd in (*self.fds, *self.channel, *self.cgroups):
            os.close(fd)
        self.fds, self.channel, self.cgroups = [], [], []

    def give_up(self, why: str) -> None:
        """Say so to who waits for it."""
        if self.fds:
            with contextlib.suppress(OSError):
                os.write(self.fds[1], json.dumps({"error": why, "code": "branch"}).encode())
        self.close()


class Newborn:
    """A child of the parent's, from when it is asked for until it is somebody's."""

    def __init__(self, builder: Builder) -> None:
        self.builder: Builder | None = builder
        self.mailbox, self.childs_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.child: ptrace.Stopped | None = None
        self._child_fd = -1
        self._door = -1
        self.at_home = False
        """It has taken over what was built for it."""

    def born(self, child: ptrace.Stopped) -> None:
        """Show it to the builder."""
        self.child = child
        assert self.builder is not None
        self._child_fd = os.pidfd_open(child.pid)
        self.builder.go(child=self._child_fd)

    def built(self) -> None:
        """What was to be built is. Raises OSError: it could not be."""
        builder = self.builder
        assert builder is not None
        builder.check()
        if builder.door is not None:
            self._door = builder.result(builder.door)

    def enter(self) -> Builder:
        """Have it take over what was built; who did it can go. Raises OSError: it could not."""
        assert self.child is not None
        self.child.do(_entering())
        return self._settled_in()

    def _settled_in(self) -> Builder:
        builder, self.builder = self.builder, None
        assert builder is not None
        self.at_home = True
        return builder

    def become(self, branch: Branch) -> Builder | None:
        """Be the one that is asked for, and go on; the builder, if it was still there. Raises OSError: it could not."""
        child = self.child
        assert child is not None
        socket.send_fds(self.mailbox, [b"mail"], [*branch.fds, *branch.cgroups])
        builder = None
        if self.at_home:
            child.do(_becoming(len(branch.cgroups)))
        else:
            child.do(_entering_and_becoming(len(branch.cgroups)))
            builder = self._settled_in()
        if not branch.cgroups and counts_processes_apart():
            limit_processes(branch.limits, child.pid)
        if branch.channel:
            door, self._door = self._door, -1
            network.hand_over(door, branch.channel[0])
        child.go_on()
        self.child = None
        return builder

    def close(self) -> None:
        """It is somebody's now, or nobody's any more: in that case it ends."""
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                self.child.kill()
            self.child = None
        self.mailbox.close()
        self.childs_end.close()
        for fd in (self._child_fd, self._door):
            if fd >= 0:
                os.close(fd)
        self._child_fd = self._door = -1


@dataclass
class Parent:
    """A process that has loaded the author's code, as the zygote knows it."""

    pid: int
    channel: socket.socket
    kind: Kind
    waiting: deque[Branch] = field(default_factory=deque)
    asked: Newborn | None = None
    """Which the parent is forking, even if it is not wanted any more."""
    building: list[Newborn] = field(default_factory=list)
    ready: deque[Newborn] = field(default_factory=deque)
    ahead: int = 0
    """How many to have that nobody waits for: as soon as one was made, it is known that they can be."""

    @property
    def newborns(self) -> list[Newborn]:
        """All of them."""
        return [*([self.asked] if self.asked else []), *self.building, *self.ready]

    @property
    def wants_more(self) -> bool:
        """Whether to tell it to fork another one, now."""
        there = len(self.building) + len(self.ready)
        return self.asked is None and there < len(self.waiting) + self.ahead

    def fork(self, newborn: Newborn) -> None:
        """Tell it to."""
        assert newborn.builder is not None
        ptrace.watch_forks(self.pid)
        with newborn.childs_end:
            socket.send_fds(self.channel, [b"fork"], [newborn.builder.pidfd, newborn.childs_end.fileno()])
        self.asked = newborn

    def next_branch(self) -> Branch | None:
        """Who waits for the longest time."""
        while self.waiting:
            branch = self.waiting.popleft()
            if not branch.given_up:
                return branch
        return None


class Builders:
    """Those who build for the children of one zygote, by what they build."""

    def __init__(self, namespaces: int, furnish: Furnish) -> None:
        self._born_with = namespaces & ~OWN
        self._furnish = furnish
        self._idle: dict[Kind, list[Builder]] = {}
        self.ending: set[int] = set()
        """Processes that are still to be waited for."""

    def come(self, kind: Kind) -> Builder:
        """One for a child to be."""
        idle = self._idle.get(kind)
        builder = idle.pop() if idle else self._new(*kind)
        builder.come()
        return builder

    def leave(self, kind: Kind, builder: Builder) -> None:
        """It has done its work; the next of its kind may have its memory."""
        if sum(map(len, self._idle.values())) < IDLE:
            self.ending.add(builder.leave())
            self._idle.setdefault(kind, []).append(builder)
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


@cache
def _entering() -> Plan:
    """What a child does to have what was built for it."""
    plan = Plan()
    _enter(plan)
    return plan


@cache
def _becoming(cgroups: int) -> Plan:
    """What a child does to be somebody's. Afterwards it has no rights but those over itself."""
    plan = Plan()
    _become(plan, cgroups)
    return plan


@cache
def _entering_and_becoming(cgroups: int) -> Plan:
    plan = Plan()
    _enter(plan)
    _become(plan, cgroups)
    return plan


def _enter(plan: Plan) -> None:
    plan.do("setns", _BUILDER, linux.CLONE_NEWNS)
    plan.do("close", _BUILDER)
    for source, target, kind, flags in rootfs.PROC:
        plan.mount(source, target, kind or "", flags)
    plan.do("setsid")


def _become(plan: Plan, cgroups: int) -> None:
    room = socket.CMSG_SPACE(_MOST_MAIL * 4)
    header = Block(struct.pack("=QI4xQQQQi4x", 0, 0, 0, 0, 0, room, 0), ((_CONTROL, bytes(room)),))
    plan.do("recvmsg", _MAILBOX, header, socket.MSG_CMSG_CLOEXEC, what="getting its descriptors")
    plan.do("close", _MAILBOX)
    # One that moves itself waits for nobody; to move another one waits until every CPU has been through the scheduler.
    for fd in range(_GROUPS, _GROUPS + cgroups):
        plan.do("write", fd, "0", 1, what="joining a control group")
        plan.do("close", fd)
    plan.do("unshare", linux.CLONE_NEWCGROUP)
    for output in (1, 2):
        plan.do("dup3", _LOG, output, 0)
    plan.do("close", _LOG)
    give_up_capabilities(plan)
    plan.do("prctl", _PR_SET_DUMPABLE, 1)


def give_up_capabilities(plan: Plan) -> None:
    """All of them, for good."""
    for capability in linux.capabilities():
        plan.do("prctl", _PR_CAPBSET_DROP, capability)
    none = struct.pack("=IiQQQ", linux.CAP_VERSION_3, 0, 0, 0, 0)
    plan.do("capset", Block(none[:8]), Block(none[8:]))


def fork_on_demand(channel: socket.socket, namespaces: int) -> tuple[int, int, int]:
    """In the parent: fork whenever told to, into new namespaces but for those that are built. Returns in the children
    only, with the descriptors that each has: listener, status, parameters.
    """
    born_with = namespaces & ~OWN | linux.CLONE_NEWUSER | linux.CLONE_NEWPID
    told = bool(forkable.told_of_forks())
    os.dup2(channel.fileno(), _CHANNEL, inheritable=False)
    channel.close()
    channel = socket.socket(fileno=_CHANNEL)
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 16, 2)
        if not data:
            os._exit(0)
        for fd, place in zip(fds, (_BUILDER, _MAILBOX), strict=True):
            os.dup2(fd, place, inheritable=False)
            os.close(fd)
        if linux.fork_into(born_with | linux.CLONE_PARENT, told=told) == 0:  # the zygote waits for them
            break
        os.close(_BUILDER)
        os.close(_MAILBOX)
    os.close(channel.detach())
    return _LISTENER, _STATUS, _PARAMETERS
