"""Forks of running instances: the door of an instance, and what is forked through it.

A process can only fork into its own process and user namespace or into new ones below them, and those end with it. So a
forkable instance is not forked itself. When it is made, a *door* is made first: a process that shares the instance's
memory (``CLONE_VM``) and nothing else, in the namespaces of the preloaded parent. The zygote keeps it stopped for as
long as the instance lives, so it never runs an instruction of the instance's code. To fork the instance, the zygote
stops the instance, makes the door fork, which copies the memory, and makes that fork, the door of the new instance,
clone the new instance into new namespaces beside those of the first. However often it is repeated, nothing gets deeper.

The door has no capabilities, no descriptors but the standard streams, and the system-call filter of every instance.
`check_alone` verifies, with the instance stopped, that no other process can share that memory or run in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from dataclasses import dataclass
from functools import cache

from aenv.isolation.files.layer_copy import copy_layer
from aenv.isolation.forking import preloaded
from aenv.isolation.forking.preloaded import LAYER, ForkRequest, PreloadedParent, UnsafeParent
from aenv.isolation.kernel import linux, ptrace
from aenv.isolation.kernel.ptrace import ThreadState
from aenv.isolation.kernel.syscall_plan import MemoryBlock, SyscallPlan
from aenv.isolation.limits.cgroups import counts_processes_per_namespace, limit_processes
from aenv.isolation.network import policy

_MAILBOX, _ZYGOTES_END, _LAST_FD = 200, 3, 0xFFFFFFFF
_EGRESS = 201
_FIRST_MAIL = 3


class Door:
    """A stopped process that shares the memory of an instance, for the zygote to fork."""

    def __init__(self, process: ptrace.Stopped) -> None:
        self._process = process
        self.pid = process.pid

    def prepare(self, cgroups: list[int]) -> None:
        """Close the descriptors that it inherited, and join the control groups of its instance, which inherits them.

        Called before there is an instance. The kernel counts memory for the first process that had it: for the door.
        """
        process = self._process
        process.set_dumpable()
        process.run(_closing())
        if cgroups:
            pidfd = os.pidfd_open(self.pid)
            try:
                with socket.socket(fileno=linux.pidfd_getfd(pidfd, _ZYGOTES_END)) as mailbox:
                    socket.send_fds(mailbox, [b"mail"], cgroups)
            finally:
                os.close(pidfd)
        process.run(_joining(len(cgroups)))
        process.release_memory()

    def fork(self) -> Door:
        """Make a door with a copy of its memory. The instance has to be stopped."""
        return Door(ptrace.Stopped(self._process.clone(preloaded.DOOR_FLAGS)))

    def open(self, flags: int) -> ptrace.Stopped:
        """Make the instance that shares its memory, in new namespaces."""
        return ptrace.Stopped(self._process.clone(flags | linux.CLONE_VM))

    def kill(self) -> None:
        """Kill it. The zygote's loop reaps it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class Branch:
    """An instance or a checkpoint, with what is needed to fork it."""

    id: str
    pid: int
    door: Door
    parent: PreloadedParent
    """What it, or the first of its line, was forked from."""
    layer: int
    """Descriptor of the file system with all that it has written."""
    channel: socket.socket | None
    """Channel over which it is asked to fork. None: a checkpoint."""
    state: ThreadState | None = None
    """Registers with which forks go on; None while the instance runs."""

    def hold(self) -> None:
        """Stop a running instance where it can be forked. It must be waiting for that already.

        Raises:
            ptrace.ProcessEnded: it ended.
            UnsafeParent: it must not be forked; `release` lets it go on.
        """
        if self.channel is None or self.state is not None:
            return
        channel = self.channel
        self.state = ptrace.stop_at_fork(
            self.pid, preloaded.DOOR_FLAGS, lambda: channel.send(b"fork", socket.MSG_DONTWAIT)
        )
        check_alone(self)

    def release(self) -> None:
        """Let a held instance go on."""
        if self.channel is not None and self.state is not None:
            self.state = None
            with contextlib.suppress(OSError):  # it was killed
                ptrace.end_fork(self.pid, 1)

    def close(self) -> None:
        """Release descriptors, and end the door."""
        if self.channel is not None:
            self.channel.close()
        if self.layer >= 0:
            os.close(self.layer)
            self.layer = -1
        self.door.kill()


def check_alone(branch: Branch) -> None:
    """Verify that nothing but an instance's one thread and its door use its memory. Both are stopped.

    A process that shares its memory can only be a descendant of the instance, which is the first process of its
    namespace: so it must have none.

    Raises:
        UnsafeParent: something could interfere.
    """
    status = preloaded.read_status(branch.pid)
    if preloaded.status_number(status, b"Threads") != 1:
        raise UnsafeParent(errno.EBUSY, "it has threads")
    if preloaded.status_number(status, b"Seccomp_filters") != branch.parent.filters:
        raise UnsafeParent(errno.EBUSY, "it has loaded a system-call filter, which a fork would lack")
    if preloaded.has_children(branch.pid):
        raise UnsafeParent(errno.EBUSY, "it has child processes")


class BranchInTheMaking:
    """A new instance or checkpoint, from its door to its first instruction."""

    def __init__(self, door: Door, parent: PreloadedParent) -> None:
        self._door = door
        self._parent = parent
        self._process: ptrace.Stopped | None = None
        self._mailbox: socket.socket | None = None
        self._layer = self._egress = -1
        self._state: ThreadState | None = None

    @property
    def pid(self) -> int:
        """Process id of the door; 0 before there is a process."""
        return self._process.pid if self._process is not None else 0

    def isolate(
        self, plan: SyscallPlan, flags: int, request: ForkRequest, *, has_egress: bool, state: ThreadState | None
    ) -> None:
        """Make the process, and have it set up its namespaces and give up its rights.

        ``state``: where it goes on, for a fork of an instance.

        Raises:
            OSError: a step failed. Call `close`.
        """
        self._door.prepare(request.cgroups)
        process = self._process = self._door.open(flags)
        if state is not None:
            process.go_on_as(state)
        self._state = state
        process.run(plan)
        if linux.has_capabilities(process.pid):  # the plan has dropped them, so this is a bug of ours
            raise UnsafeParent(errno.EPERM, "a forked process kept its capabilities")
        pidfd = os.pidfd_open(process.pid)
        try:
            self._mailbox = socket.socket(fileno=linux.pidfd_getfd(pidfd, _ZYGOTES_END))
            self._layer = linux.pidfd_getfd(pidfd, LAYER)
            if has_egress:
                self._egress = linux.pidfd_getfd(pidfd, _EGRESS)
        finally:
            os.close(pidfd)

    def copy_files(self, source: int) -> None:
        """Copy the files of the instance that it is a fork of."""
        copy_layer(source, self._layer)

    def run(self, request: ForkRequest) -> Branch:
        """Let it run as the requested instance.

        Raises:
            OSError: it failed. Call `close`.
        """
        process = self._process
        assert process is not None
        assert self._mailbox is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self._mailbox, [b"mail"], [*request.fds, theirs.fileno()])
            process.run(preloaded.becoming_forkable())
            if not request.cgroups and counts_processes_per_namespace():
                limit_processes(request.limits, process.pid)
            if request.egress_channel:
                egress, self._egress = self._egress, -1
                policy.send_listener(egress, request.egress_channel[0])
            process.resume_traced()
        except BaseException:
            ours.close()
            raise
        return self._made(request, ours, None)

    def park(self, request: ForkRequest) -> Branch:
        """Keep it stopped, as a checkpoint."""
        assert self._process is not None
        self._process.release_memory()
        return self._made(request, None, self._state)

    def _made(self, request: ForkRequest, channel: socket.socket | None, state: ThreadState | None) -> Branch:
        assert self._process is not None
        layer, self._layer = self._layer, -1
        made = Branch(request.id, self._process.pid, self._door, self._parent, layer, channel, state)
        self._process = None
        return made

    def close(self, *, failed: bool) -> None:
        """Release descriptors. ``failed``: kill what was made."""
        if failed:
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    self._process.kill()
            self._door.kill()
        if self._mailbox is not None:
            self._mailbox.close()
        for fd in (self._layer, self._egress):
            if fd >= 0:
                os.close(fd)


@cache
def _closing() -> SyscallPlan:
    """Return the first plan of a door: no descriptors but a mailbox of its own."""
    plan = SyscallPlan()
    plan.do("close_range", 3, _LAST_FD, 0)
    kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
    plan.do("socketpair", socket.AF_UNIX, kind, 0, MemoryBlock(bytes(8)))
    plan.do("dup3", _ZYGOTES_END + 1, _MAILBOX, os.O_CLOEXEC)
    plan.do("close", _ZYGOTES_END + 1)
    return plan


@cache
def _joining(cgroups: int) -> SyscallPlan:
    """Return the plan by which a door joins control groups, and closes its mailbox."""
    plan = SyscallPlan()
    plan.do("close", _ZYGOTES_END)
    if cgroups:
        plan.do("recvmsg", _MAILBOX, preloaded.mail_header(), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
        for fd in range(_FIRST_MAIL, _FIRST_MAIL + cgroups):
            plan.do("write", fd, "0", 1, what="joining a control group")
            plan.do("close", fd)
    plan.do("close", _MAILBOX)
    return plan
