"""Become a sandbox: set up namespaces, give up every right, then run foreign code. Runs in a fork of the zygote."""

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

    ``carry``: for a preloaded parent, whose forks set up their namespaces from mounts that it keeps.
    """

    def __init__(
        self, spec: ZygoteSpec, hidden: list[str], disk: int, mode: policy.Mode, *, carry: bool = False
    ) -> None:
        plan = SyscallPlan()
        self.egress = set_up_namespaces(plan, spec, hidden, disk, mode, carry=carry)
        self.pristine = custom_rootfs.open_pristine(plan) if spec.base is not None else None
        rootfs.cover(plan, rootfs.SPARE_PROC)
        self.table = PlanTable(plan)
        without = SyscallPlan()
        preloaded.give_up_capabilities(without)
        self.without_rights = PlanTable(without)


class Sandbox:
    """A sandbox, in the process that becomes it."""

    def __init__(self, spec: ZygoteSpec, program: bytes, setup: SandboxSetup, *, forks: bool = False) -> None:
        self._spec = spec
        self._forks = forks
        self._setup = setup
        self._program = program
        self._code = 1
        self._status = -1

    def _take(self, message: dict[str, Any], fds: list[int]) -> None:
        """Take the parameters and descriptors of a request."""
        self._limits = Limits(**message["limits"])
        self._listener, self._status, self._log, self._parameters, *self._cgroups = fds
        self._channel = self._cgroups.pop(0) if message["network"] == "egress" else -1
        self._fork = message["fork"]

    def run(self, message: dict[str, Any], fds: list[int]) -> None:
        """Become the requested sandbox. Never returns."""
        with self._exiting():
            self._take(message, fds)
            self._leave_host(fds)
            self._go()

    def wait(self, mailbox: socket.socket) -> None:
        """Become a pre-forked sandbox: wait for a request. Never returns."""
        with self._exiting():
            self._leave_host([mailbox.fileno()])
            call(self._spec.rehearse)
            message, fds, _, _ = socket.recv_fds(mailbox, _MAIL, MAX_FDS)
            mailbox.close()
            if message:
                self._take(json.loads(message), fds)
                self._go()

    def _go(self) -> None:
        if not self._fork:
            variables = private_folder.pass_to_exec()  # before the filter, which may refuse memfd_create
            self._give_up_rights()
            self._start_program(variables)
        parameters = read_parameters(self._parameters)
        self._give_up_rights()
        self._code = load(self._spec.entry)(socket.socket(fileno=self._listener), parameters, self._report)

    def _start_program(self, variables: dict[str, str]) -> NoReturn:
        """Execute a new program that serves the same, with nothing of this process's memory."""
        fds = (self._listener, self._status, self._parameters)
        for fd in fds:
            os.set_inheritable(fd, True)
        words = ("-P", "-m", self._spec.program, *map(str, fds), json.dumps(self._spec.shown))
        if self._spec.base is not None:
            custom_rootfs.exec_interpreter(*words, variables=variables)
        os.execve(sys.executable, [sys.executable, *words], {**os.environ, **variables})

    def prepare(self, message: dict[str, Any], fds: list[int], channel: socket.socket) -> None:
        """Become a preloaded parent: load the environment's code, then fork on request. Never returns."""
        with self._exiting():
            self._take(message, fds)
            self._leave_host([*fds, channel.fileno()])
            parameters = read_parameters(self._parameters)
            os.close(self._listener)
            self._listener = -1
            self._give_up_rights(to_be_forked=True)
            with forkable.ForkWatch() as watch:
                prepared = load(self._spec.prepare)(parameters, self._report)
            if prepared is None:
                return
            unfit = watch.unfit_reason()
            if unfit is not None:
                self._report({"unfit": unfit})
                return
            flags = preloaded.first_flags(self._spec.fresh, forkable=message["forkable"])
            self._code = prepared.serve(lambda: self._forked(channel, prepared.reads, flags))

    def _forked(self, channel: socket.socket, reads: list[str] | None, flags: int) -> tuple[socket.socket, bytes]:
        """Fork on request. Returns in the forks only, with the socket to listen on and the parameters."""
        gc.collect()
        gc.freeze()
        self._report({"prepared": True, "reads": reads})
        listener, self._status, parameters = preloaded.serve_forks(
            channel, flags, self._pristine, plain=self._spec.plain
        )
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, listener), read_parameters(parameters)

    @contextlib.contextmanager
    def _exiting(self) -> Iterator[None]:
        """Report an error, if there is any, and end the process."""
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

    def _leave_host(self, keep: list[int]) -> None:
        """Leave the host's session and namespaces, and close all descriptors but those to keep."""
        os.setsid()  # kill(0) and setpriority reach a whole process group, beyond the process namespace
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        linux.unshare(self._spec.fresh)
        self._setup.table.run()
        egress = self._setup.egress
        self._egress = self._setup.table.result(egress) if egress is not None else -1
        pristine = self._setup.pristine
        self._pristine = self._setup.table.result(pristine) if pristine is not None and self._forks else -1
        os.chdir("/")
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in (0, 1, 2, self._egress, self._pristine, *keep):
                with contextlib.suppress(OSError):
                    os.close(int(name))

    def _give_up_rights(self, *, to_be_forked: bool = False) -> None:
        """Give up every right, before the first foreign byte is read."""
        if self._channel >= 0:
            policy.send_listener(self._egress, self._channel)
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
        forkable.alone()  # the next call is refused while a thread of the rehearsal is still ending
        linux.unshare(linux.CLONE_NEWUSER)  # last: it takes the rights over the other namespaces away
        linux.set_dumpable(True)  # the zygote is not, and its /proc/self would belong to root
        linux.map_user(rootfs.USER_ID, rootfs.USER_ID, rootfs.USER_ID, bounded=not to_be_forked)
        if not self._cgroups and counts_processes_per_namespace():
            if to_be_forked:
                limit_parent_processes()
            else:
                limit_processes(self._limits)
        set_resource_limits(self._limits, alone=not self._cgroups)
        os.umask(0o022)
        linux.no_new_privileges()
        self._setup.without_rights.run()
        linux.load_seccomp(self._program)
        gc.enable()
        sys.path[:0] = self._spec.shown  # from here on foreign packages can be imported

    @staticmethod
    def filters(*, alone: bool) -> int:
        """Return how many system-call filters `_give_up_rights` loads. ``alone``: without a control group."""
        return 2 if alone else 1

    def _report(self, message: dict[str, Any] | bytes) -> None:
        """Answer the request through the status pipe, once. The message may be JSON already."""
        if self._status >= 0:
            if isinstance(message, dict) and "error" in message:
                # Small enough for one atomic write to a pipe, whatever the text of the exception.
                text = str(message["error"]).encode(errors="replace").decode()
                message = {**message, "error": text if len(text) <= ERROR_LENGTH else f"{text[:ERROR_LENGTH]}..."}
            os.write(self._status, message if isinstance(message, bytes) else json.dumps(message).encode())
            os.close(self._status)
            self._status = -1


def read_parameters(fd: int) -> bytes:
    """Read the parameters of a sandbox. Never in the zygote: all later sandboxes inherit its memory."""
    data = b""
    while part := os.read(fd, 16384):
        data += part
    os.close(fd)
    return data


def set_up_namespaces(
    plan: SyscallPlan,
    spec: ZygoteSpec,
    hidden: list[str],
    disk: int,
    mode: policy.Mode,
    *,
    carry: bool = False,
    layer_fd: int = -1,
) -> Outcome | None:
    """Add the calls that set up new namespaces; return the call that opens the egress listener.

    ``carry``: for a preloaded parent. ``layer_fd``: see `rootfs.mount_writable`.
    """
    if spec.base is not None:
        custom_rootfs.mount_root(plan, size=disk, volume=spec.volume, carry=carry, on_disk=spec.disk is not None)
    else:
        rootfs.mount_writable(
            plan, size=disk, shown=hidden, volume=spec.volume, on_disk=spec.disk is not None, layer_fd=layer_fd
        )
        rootfs.mount_proc(plan, hide_others=carry)
    plan.do("sethostname", "sandbox", len("sandbox"))
    return policy.configure(plan, mode)


def load(name: str) -> Callable[..., Any]:
    """Import a function by ``module:function``."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def call(name: str) -> None:
    """Import and call a function without arguments."""
    load(name)()
