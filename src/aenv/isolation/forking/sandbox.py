"""A sandbox from inside: build its namespaces, give up every right, then run foreign code."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from aenv.isolation.files import custom_rootfs, private_folder, rootfs
from aenv.isolation.forking import forkable, preloaded
from aenv.isolation.forking.zygote_spec import MAX_FDS, ZygoteSpec
from aenv.isolation.kernel import linux
from aenv.isolation.kernel.syscall_plan import Outcome, PlanTable, SyscallPlan
from aenv.isolation.limits.cgroups import (
    Limits,
    counts_processes_per_namespace,
    limit_parent_processes,
    limit_processes,
    set_resource_limits,
)
from aenv.isolation.network import policy

ERROR_LENGTH = 8000
_MAIL = 1 << 16
Report = Callable[[dict[str, Any] | bytes], None]


class SandboxSetup:
    """The plan for new namespaces of one kind, and the one that gives up every capability, ready to run.

    ``carry``: for a preloaded parent, whose forks furnish namespaces from what it takes along.
    """

    def __init__(
        self, spec: ZygoteSpec, hidden: list[str], disk: int, mode: policy.Mode, *, carry: bool = False
    ) -> None:
        plan = SyscallPlan()
        self.door = furnish(plan, spec, hidden, disk, mode, carry=carry)
        self.pristine = custom_rootfs.open_pristine(plan) if spec.base is not None else None
        rootfs.cover(plan, rootfs.SPARE_PROC)
        self.table = PlanTable(plan)
        without = SyscallPlan()
        preloaded.give_up_capabilities(without)
        self.without_rights = PlanTable(without)


class Sandbox:
    """One sandbox, from within."""

    def __init__(self, spec: ZygoteSpec, program: bytes, furnishing: SandboxSetup, *, forks: bool = False) -> None:
        self._spec = spec
        self._forks = forks
        self._furnishing = furnishing
        self._program = program
        self._code = 1
        self._status = -1

    def _take(self, message: dict[str, Any], fds: list[int]) -> None:
        """Be the one that is asked for."""
        self._limits = Limits(**message["limits"])
        self._listener, self._status, self._log, self._parameters, *self._cgroups = fds
        self._channel = self._cgroups.pop(0) if message["network"] == "egress" else -1
        self._fork = message["fork"]

    def run(self, message: dict[str, Any], fds: list[int]) -> None:
        """Never returns."""
        with self._to_the_end():
            self._take(message, fds)
            self._leave(fds)
            self._go()

    def wait(self, mailbox: socket.socket) -> None:
        """Be ready for who will ask for one. Never returns."""
        with self._to_the_end():
            self._leave([mailbox.fileno()])
            call(self._spec.rehearse)
            message, fds, _, _ = socket.recv_fds(mailbox, _MAIL, MAX_FDS)
            mailbox.close()
            if message:
                self._take(json.loads(message), fds)
                self._go()

    def _go(self) -> None:
        if not self._fork:
            variables = private_folder.pass_to_exec()  # before the filter, which may refuse a file in memory
            self._lock()
            self._start_program(variables)
        told = _read(self._parameters)
        self._lock()
        self._code = load(self._spec.entry)(socket.socket(fileno=self._listener), told, self._report)

    def _start_program(self, variables: dict[str, str]) -> NoReturn:
        """Become a new program that does the same, with nothing of this process's memory."""
        fds = (self._listener, self._status, self._parameters)
        for fd in fds:
            os.set_inheritable(fd, True)
        words = ("-P", "-m", self._spec.program, *map(str, fds), json.dumps(self._spec.shown))
        if self._spec.base is not None:
            custom_rootfs.exec_interpreter(*words, variables=variables)
        os.execve(sys.executable, [sys.executable, *words], {**os.environ, **variables})

    def prepare(self, message: dict[str, Any], fds: list[int], channel: socket.socket) -> None:
        """Load the author's code, then fork whenever told to. Never returns."""
        with self._to_the_end():
            self._take(message, fds)
            self._leave([*fds, channel.fileno()])
            told = _read(self._parameters)
            os.close(self._listener)
            self._listener = -1
            self._lock(to_be_forked=True)
            with forkable.Watch() as watch:
                prepared = load(self._spec.prepare)(told, self._report)
            if prepared is None:
                return
            unfit = watch.why_not()
            if unfit is not None:
                self._report({"unfit": unfit})
                return
            self._code = prepared.serve(lambda: self._forked(channel, prepared.reads))

    def _forked(self, channel: socket.socket, reads: list[str] | None) -> tuple[socket.socket, bytes]:
        """Serve forks. Returns in the forks only: where to listen, and what each is told."""
        gc.collect()
        gc.freeze()
        self._report({"prepared": True, "reads": reads})
        listener, self._status, parameters = preloaded.serve_forks(
            channel, self._spec.fresh, self._pristine, plain=self._spec.plain
        )
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, listener), _read(parameters)

    @contextlib.contextmanager
    def _to_the_end(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._report({"error": f"{type(error).__name__}: {error}", "code": "sandbox"})
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(self._code)

    def _leave(self, keep: list[int]) -> None:
        """Everything of the host, and all descriptors but these."""
        os.setsid()  # kill(0) and setpriority reach a whole process group, beyond the process namespace
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        linux.unshare(self._spec.fresh)
        self._furnishing.table.run()
        door = self._furnishing.door
        self._door = self._furnishing.table.result(door) if door is not None else -1
        pristine = self._furnishing.pristine
        self._pristine = self._furnishing.table.result(pristine) if pristine is not None and self._forks else -1
        os.chdir("/")
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in (0, 1, 2, self._door, self._pristine, *keep):
                with contextlib.suppress(OSError):
                    os.close(int(name))

    def _lock(self, *, to_be_forked: bool = False) -> None:
        """Give up every right, before the first foreign byte is read."""
        if self._channel >= 0:
            policy.send_listener(self._door, self._channel)
            os.close(self._channel)
        for fd in self._cgroups:
            os.write(fd, b"0")
            os.close(fd)
        linux.unshare(linux.CLONE_NEWCGROUP)
        for output in (1, 2):
            os.dup2(self._log, output)
        os.close(self._log)
        for fd in (self._listener, self._status):
            if fd >= 0:
                os.set_inheritable(fd, False)
        forkable.alone()  # else the next call is refused; what has rehearsed may have a thread that is just ending
        linux.unshare(linux.CLONE_NEWUSER)  # last: it takes the rights over the other namespaces away
        linux.set_dumpable(True)  # the zygote is not, and then its /proc/self belongs to root
        linux.map_user(rootfs.USER_ID, rootfs.USER_ID, rootfs.USER_ID, bounded=not to_be_forked)
        if not self._cgroups and counts_processes_per_namespace():
            if to_be_forked:
                limit_parent_processes()
            else:
                limit_processes(self._limits)
        set_resource_limits(self._limits, alone=not self._cgroups)
        os.umask(0o022)
        linux.no_new_privileges()
        self._furnishing.without_rights.run()
        linux.load_seccomp(self._program)
        gc.enable()
        sys.path[:0] = self._spec.shown  # foreign packages, from here on

    @staticmethod
    def filters(*, alone: bool) -> int:
        """How many system-call filters `_lock` loads. ``alone``: there is no control group."""
        return 2 if alone else 1

    def _report(self, message: dict[str, Any] | bytes) -> None:
        """Tell who asked for the sandbox, once; it may be JSON already."""
        if self._status >= 0:
            if isinstance(message, dict) and "error" in message:
                # In one piece through a pipe, whatever the author's exception has to say.
                text = str(message["error"]).encode(errors="replace").decode()
                message = {**message, "error": text if len(text) <= ERROR_LENGTH else f"{text[:ERROR_LENGTH]}..."}
            os.write(self._status, message if isinstance(message, bytes) else json.dumps(message).encode())
            os.close(self._status)
            self._status = -1


def _read(fd: int) -> bytes:
    """All of what a sandbox is told. Not in the zygote, whose memory all later sandboxes inherit."""
    told = b""
    while part := os.read(fd, 16384):
        told += part
    os.close(fd)
    return told


def furnish(
    plan: SyscallPlan, spec: ZygoteSpec, hidden: list[str], disk: int, mode: policy.Mode, *, carry: bool = False
) -> Outcome | None:
    """Add what new namespaces need; returns the call that opens the egress listener, see `network.settle`.

    ``carry``: for a preloaded parent.
    """
    if spec.base is not None:
        custom_rootfs.mount_root(plan, size=disk, volume=spec.volume, carry=carry)
    else:
        rootfs.mount_writable(plan, size=disk, shown=hidden, volume=spec.volume)
        rootfs.mount_proc(plan, hide_others=carry)
    plan.do("sethostname", "sandbox", len("sandbox"))
    return policy.configure(plan, mode)


def load(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def call(name: str) -> None:
    load(name)()
