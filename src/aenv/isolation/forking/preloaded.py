"""Forks of a preloaded parent: sandboxes that begin with an environment's code already imported.

A preloaded parent runs foreign code, so it is treated as hostile: it has no capabilities, a system-call filter, and
user, process and mount namespaces of its own. It forks when the zygote asks it to. The kernel stops the new child
before its first instruction (ptrace), while it still holds every capability over its own new namespaces. The zygote
then makes the child run a fixed list of system calls, from memory that only the child has: mount its file systems,
configure its network, give up every capability. Only then may any foreign instruction run again.

Nothing foreign can interfere in between. The parent is the only process that could reach the child, and it is stopped:
`check_harmless` verifies, with the parent stopped, that it has one thread, no descendants and no system-call filter of
its own. No process of ours ever enters a namespace of the child or shares memory with it. docs/design/sandbox.md has
the whole picture, and docs/design/instance-creation.md the states of a child.

One child is made ahead of demand. It waits, stopped and without rights, until a request turns it into an instance by
sending it that instance's descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from aenv.isolation.files import rootfs
from aenv.isolation.forking import forkable
from aenv.isolation.kernel import linux, ptrace, seccomp
from aenv.isolation.kernel.syscall_plan import MemoryBlock, Outcome, SyscallPlan
from aenv.isolation.limits.cgroups import Limits, counts_processes_per_namespace, limit_processes
from aenv.isolation.network import policy
from aenv.isolation.network.policy import Mode

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 4, 24
_CHANNEL, _MAILBOX, _EGRESS = 199, 200, 201
"""Fixed descriptor numbers: the parent's channel to the zygote, the child's mailbox, the child's egress listener."""
_ZYGOTES_END = 3
"""The other end of the mailbox: the first descriptor that a child opens, of which the zygote takes a copy."""
_LISTENER, _STATUS, _LOG, _PARAMETERS, _CGROUPS = range(3, 8)
"""Descriptors of a child after it received its mail. The kernel hands out the lowest free numbers, and all between 3
and the mailbox are closed before. From `_CGROUPS` on come those of the control groups to join."""
FORK_CHANNEL, LAYER = 198, 202
"""Fixed descriptor numbers of a forkable instance: the channel over which the zygote asks it to fork, and, until it
runs, the file system with all that it writes."""
_MAX_MAIL_FDS = 16
_STATUS_SIZE = 1 << 14
_CONTROL_OFFSET = 32  # of msg_control in struct msghdr
_LAST_FD = 0xFFFFFFFF

DOOR_FLAGS = linux.CLONE_PARENT | linux.FORK_FLAGS | signal.SIGCHLD
"""Flags of the ``clone`` that makes a door, see `aenv.isolation.forking.doors`."""
AHEAD = 1
"""Children to pre-fork."""
ATTEMPTS = 3
"""Children to try for one request."""
Kind = tuple[int, Mode]
"""Kind of a sandbox: the size of its writable layer, and its network mode."""
SetUpNamespaces = Callable[[SyscallPlan, int, Mode], Outcome | None]
"""Add the mounts and the network of a sandbox to a plan; returns the call that opens the egress listener, if any."""


class UnsafeParent(OSError):
    """A preloaded parent in a state in which it must not be forked."""


@dataclass
class ForkRequest:
    """A pending request for a forked sandbox."""

    id: str
    limits: Limits
    fds: list[int]
    """Listener, status pipe, log pipe, parameters."""
    egress_channel: list[int]
    """Channel for sending the egress listener, if the sandbox has one."""
    cgroups: list[int]
    attempts: int = 0
    """Children that failed to become the instance."""

    @property
    def cancelled(self) -> bool:
        """True once it was answered with an error."""
        return not self.fds

    def close(self) -> None:
        """Close its descriptors; the other end of the status pipe sees end of file."""
        for fd in (*self.fds, *self.egress_channel, *self.cgroups):
            os.close(fd)
        self.fds, self.egress_channel, self.cgroups = [], [], []

    def fail(self, reason: str) -> None:
        """Answer with an error."""
        if self.fds:
            with contextlib.suppress(OSError):
                os.write(self.fds[1], json.dumps({"error": reason, "code": "branch"}).encode())
        self.close()


class StoppedChild:
    """A fork of a preloaded parent, stopped from its first instruction until it runs as an instance."""

    def __init__(self, process: ptrace.Stopped) -> None:
        self._process: ptrace.Stopped | None = process
        self.pid = process.pid
        self._mailbox: socket.socket | None = None
        self._egress = -1

    def isolate(self, plan: SyscallPlan, *, has_egress: bool) -> None:
        """Make it set up its namespaces and give up its rights. The arguments are those that `isolating` returned.

        Raises:
            OSError: a step failed. Call `close`.
        """
        assert self._process is not None
        self._process.run(plan)
        if linux.has_capabilities(self.pid):  # the plan has dropped them, so this is a bug of ours
            raise UnsafeParent(errno.EPERM, "a forked process kept its capabilities")
        pidfd = os.pidfd_open(self.pid)
        try:
            self._mailbox = socket.socket(fileno=linux.pidfd_getfd(pidfd, _ZYGOTES_END))
            if has_egress:
                self._egress = linux.pidfd_getfd(pidfd, _EGRESS)
        finally:
            os.close(pidfd)

    def become(self, request: ForkRequest) -> None:
        """Turn it into the requested instance and let it run.

        Raises:
            OSError: it failed. Call `close`.
        """
        process = self._process
        assert process is not None
        assert self._mailbox is not None
        socket.send_fds(self._mailbox, [b"mail"], [*request.fds, *request.cgroups])
        with same_cpu(self.pid):
            process.run(_becoming(len(request.cgroups)))
        if not request.cgroups and counts_processes_per_namespace():
            limit_processes(request.limits, self.pid)
        if request.egress_channel:
            egress, self._egress = self._egress, -1
            policy.send_listener(egress, request.egress_channel[0])
        process.resume()
        self._process = None

    def gone(self) -> None:
        """Note that it was killed and reaped."""
        self._process = None

    def close(self) -> None:
        """Release its descriptors. Kill it unless it runs as an instance."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                self._process.kill()
            self._process = None
        if self._mailbox is not None:
            self._mailbox.close()
        if self._egress >= 0:
            os.close(self._egress)
            self._egress = -1


@dataclass
class PreloadedParent:
    """A process with an environment's code in memory, as the zygote sees it."""

    pid: int
    init: int
    """The first process of its process namespace."""
    channel: socket.socket
    kind: Kind
    filters: int
    """System-call filters that it was given."""
    waiting: deque[ForkRequest] = field(default_factory=deque)
    stopped: deque[StoppedChild] = field(default_factory=deque)
    forkable: bool = False
    """Its instances can be forked while they run."""
    ended: bool = False
    """It has ended, and was reaped."""
    ahead: int = 0
    """Children to pre-fork. 0 until the first one was made, and after one could not be made."""

    @property
    def wants_child(self) -> bool:
        """True if another child should be forked now."""
        return len(self.stopped) < len(self.waiting) + self.ahead

    def fork(self, plan: SyscallPlan, flags: int, *, has_egress: bool) -> StoppedChild:
        """Fork the parent, and make the child give up its rights. The parent is stopped all the while.

        ``plan`` and ``has_egress`` come from `isolating`. Blocks; the caller sets a time limit.

        Raises:
            ptrace.ProcessEnded: the parent ended.
            UnsafeParent: it must not be forked any more.
            OSError: it could not be forked, or a step of its child failed.
        """
        with self._forking(flags) as (process, _):
            child = StoppedChild(process)
            try:
                check_harmless(self)
                child.isolate(plan, has_egress=has_egress)
            except BaseException:
                child.close()
                raise
        return child

    @contextlib.contextmanager
    def fork_door(self) -> Iterator[tuple[ptrace.Stopped, list[int]]]:
        """Fork a parent whose instances are forkable, without new namespaces: the first step of an instance.

        The parent is stopped within ``with``, until the instance has no rights left: it could open its memory. Yields
        the process, and the list of processes that are pinned to this CPU (see `same_cpu`).

        Raises:
            the same errors as `fork`.
        """
        with self._forking(DOOR_FLAGS) as (process, pinned):
            try:
                check_harmless(self)
            except BaseException:
                process.kill()
                raise
            yield process, pinned

    @contextlib.contextmanager
    def kept_away(self) -> Iterator[None]:
        """Keep the parent, which is not forked now, from processes that have rights: it is stopped within ``with``.

        It sees the doors and instances that were made from it, and is the owner of their user namespaces. Where it has
        ended, it may have left orphans, which are children of the first process of its namespace.

        Raises:
            ptrace.ProcessEnded: it ended just now.
            UnsafeParent: something could interfere.
        """
        if self.ended:
            if has_children(self.init):
                raise UnsafeParent(errno.EPERM, "the preloaded parent has left processes")
            yield
            return
        with ptrace.paused(self.pid):
            check_harmless(self)
            yield

    @contextlib.contextmanager
    def _forking(self, flags: int) -> Iterator[tuple[ptrace.Stopped, list[int]]]:
        """Fork the parent, which is stopped within ``with``."""
        with same_cpu(self.pid) as pinned:
            ptrace.trace_forks(self.pid)
            self.channel.send(b"fork", socket.MSG_DONTWAIT)
            pid = ptrace.wait_for_fork(self.pid, flags)
            pinned.append(pid)  # as its parent is
            try:
                yield ptrace.Stopped(pid), pinned
            finally:
                with contextlib.suppress(OSError):  # it may have been killed
                    ptrace.release(self.pid)

    def next_request(self) -> ForkRequest | None:
        """Take the oldest request that is not cancelled."""
        while self.waiting:
            request = self.waiting.popleft()
            if not request.cancelled:
                return request
        return None


@contextlib.contextmanager
def same_cpu(pid: int) -> Iterator[list[int]]:
    """Pin a traced process to the CPU of its tracer; yields the list of pinned processes.

    The two take turns some fifty times, and waking up an idle CPU each time takes longer than all of their work.
    """
    pinned = [0, pid]
    before = os.sched_getaffinity(0)
    here = {linux.current_cpu()}
    try:
        for one in pinned:
            os.sched_setaffinity(one, here)
        yield pinned
    finally:
        for one in pinned:
            with contextlib.suppress(OSError):  # it may have ended
                os.sched_setaffinity(one, before)


def check_harmless(parent: PreloadedParent) -> None:
    """Verify that nothing foreign can interfere with a new child of a stopped preloaded parent.

    It must be the only foreign process of its process namespace: with one thread, and with no descendants. Those whose
    own parent has ended are children of the first process. The filter lets nothing but the traced fork pass
    ``CLONE_PARENT``, so there are no others.

    And it must have no filter beside those that it was given: a child inherits them, and one that answers ``capset``
    with success, without letting it through, would leave the child its capabilities.

    Raises:
        UnsafeParent: something could interfere.
    """
    status = read_status(parent.pid)
    if status_number(status, b"Threads") != 1:
        raise UnsafeParent(errno.EPERM, "the preloaded parent has threads")
    if status_number(status, b"Seccomp_filters") != parent.filters:
        raise UnsafeParent(errno.EPERM, "the preloaded parent has loaded a system-call filter")
    if has_children(parent.pid) or has_children(parent.init):
        raise UnsafeParent(errno.EPERM, "the preloaded parent has child processes")


def read_status(pid: int) -> bytes:
    """Return the beginning of /proc/PID/status."""
    return _read(f"/proc/{pid}/status")


def own_filters() -> int:
    """Return the number of system-call filters of this process."""
    return status_number(_read("/proc/self/status"), b"Seccomp_filters")


def status_number(status: bytes, name: bytes) -> int:
    """Return the number in a line of /proc/PID/status; -1 if there is no such line."""
    _, found, rest = status.partition(b"\n" + name + b":")
    return int(rest.partition(b"\n")[0]) if found else -1


def has_children(pid: int) -> bool:
    """Return whether a process has children."""
    try:
        return bool(_read(f"/proc/{pid}/task/{pid}/children"))
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return any(_parent_of(name) == pid for name in os.listdir("/proc") if name.isdigit())


def _read(path: str) -> bytes:
    """Read the beginning of a file of procfs. Without Python's file objects, which would cost time on every fork."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _STATUS_SIZE)
    finally:
        os.close(fd)


def _parent_of(name: str) -> int:
    try:
        with open(f"/proc/{name}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def isolating(set_up_namespaces: SetUpNamespaces, kind: Kind) -> tuple[SyscallPlan, bool]:
    """Return the plan that a new child runs before any foreign instruction, and whether it opens an egress listener."""
    plan = SyscallPlan()
    for name, text in linux.user_maps(rootfs.USER_ID, rootfs.USER_ID, rootfs.USER_ID):
        plan.write(f"/proc/self/{name}", text)
    plan.do("close_range", 3, _LAST_FD, 0)
    # The mailbox is the child's own. One that came by way of the parent could be read by the parent.
    kind_of_socket = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
    plan.do("socketpair", socket.AF_UNIX, kind_of_socket, 0, MemoryBlock(bytes(8)))  # 3 and 4, as all others are closed
    plan.do("dup3", _ZYGOTES_END + 1, _MAILBOX, os.O_CLOEXEC)
    plan.do("close", _ZYGOTES_END + 1)
    egress = set_up_namespaces(plan, *kind)
    if egress is not None:
        plan.do("dup3", egress, _EGRESS, os.O_CLOEXEC)
        plan.do("close", egress)
    plan.do("setsid")
    plan.do("chdir", "/")
    nothing = plan.do("openat", linux.HERE, "/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    plan.do("dup3", nothing, 0, 0)  # not a socket that the parent holds the other end of
    plan.do("close", nothing)
    give_up_capabilities(plan)
    plan.do("prctl", _PR_SET_DUMPABLE, 1)  # changing credentials has cleared it
    return plan, egress is not None


def mail_header() -> MemoryBlock:
    """Return the header with which `recvmsg` takes descriptors out of a mailbox."""
    room = socket.CMSG_SPACE(_MAX_MAIL_FDS * 4)
    return MemoryBlock(struct.pack("=QI4xQQQQi4x", 0, 0, 0, 0, 0, room, 0), ((_CONTROL_OFFSET, bytes(room)),))


@cache
def becoming_forkable() -> SyscallPlan:
    """Return the plan by which a child becomes a forkable instance, which is in its control groups already."""
    plan = _becoming(0).copy()
    plan.do("dup3", _CGROUPS, FORK_CHANNEL, os.O_CLOEXEC)
    plan.do("close", _CGROUPS)
    plan.do("close", LAYER)
    return plan


@cache
def _becoming(cgroups: int) -> SyscallPlan:
    """Return the plan by which a child without rights becomes an instance."""
    plan = SyscallPlan()
    plan.do("close", _ZYGOTES_END)
    plan.do(
        "recvmsg", _MAILBOX, mail_header(), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT, what="receiving descriptors"
    )
    plan.do("close", _MAILBOX)
    plan.do("close", _EGRESS, tolerated=errno.EBADF)
    # A process that moves itself waits for nothing; moving another waits until every CPU went through the scheduler.
    for fd in range(_CGROUPS, _CGROUPS + cgroups):
        plan.do("write", fd, "0", 1, what="joining a control group")
        plan.do("close", fd)
    for output in (1, 2):
        plan.do("dup3", _LOG, output, 0)
    plan.do("close", _LOG)
    return plan


def give_up_capabilities(plan: SyscallPlan) -> None:
    """Add the calls that drop every capability for good."""
    for capability in linux.capabilities():
        plan.do("prctl", _PR_CAPBSET_DROP, capability)
    none = struct.pack("=IiQQQ", linux.CAP_VERSION_3, 0, 0, 0, 0)
    plan.do("capset", MemoryBlock(none[:8]), MemoryBlock(none[8:]))


def fork_flags(namespaces: int) -> int:
    """Return the flags of the only ``clone`` into new namespaces that the filter lets a traced parent make."""
    own = linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWCGROUP
    return namespaces | own | linux.CLONE_PARENT | linux.FORK_FLAGS | signal.SIGCHLD


def first_flags(namespaces: int, *, forkable: bool) -> int:
    """Return the flags of the ``clone`` that a preloaded parent makes itself."""
    return DOOR_FLAGS if forkable else fork_flags(namespaces)


def traced_calls(namespaces: int, *, forkable: bool = False) -> seccomp.Traced:
    """Return the calls that a preloaded parent and its new child may make only while the zygote traces them."""
    built = ("mount", "move_mount", "open_tree", "pivot_root", "sethostname", "umount2")
    flags = fork_flags(namespaces)
    return {"clone": (DOOR_FLAGS, flags | linux.CLONE_VM) if forkable else (flags,), **dict.fromkeys(built, ())}


def serve_forks(channel: socket.socket, flags: int, pristine: int, *, plain: bool) -> tuple[int, int, int]:
    """Run in the preloaded parent: fork on request. Returns in children only: listener, status, parameters.

    ``flags``: see `first_flags`. ``plain``: have Python's own fork handlers run, see `cpython_internals`.
    ``pristine``: a descriptor of `custom_rootfs.PRISTINE`, or -1. The parent's working directory is set to it, because
    that is the only thing that a new mount namespace takes along from below a covering mount.
    """
    notify = plain or bool(forkable.modules_to_notify())
    linux.forget_rseq()  # once here, and not in every fork by the zygote, which takes longer
    os.dup2(channel.fileno(), _CHANNEL, inheritable=False)
    channel.close()
    channel = socket.socket(fileno=_CHANNEL)
    if pristine >= 0:
        os.fchdir(pristine)
        os.close(pristine)
    while True:
        if not channel.recv(16):
            os._exit(0)
        try:
            if linux.fork_with(flags, notify=notify) == 0:  # CLONE_PARENT: the zygote is the child's parent, too
                break
        except OSError:
            os._exit(1)  # refused; the zygote then fails all waiting requests
    channel.detach()  # closed by the plan that isolates a child
    return _LISTENER, _STATUS, _PARAMETERS
