"""The child's side of the fork: lock the door, then do the work."""

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
from typing import Any

from aenv.isolation import based, branches, forkable, linux, network, rootfs
from aenv.isolation.limits import Limits, counts_processes_apart, limit_processes, set_resource_limits
from aenv.isolation.plan import Outcome, Plan, Table
from aenv.isolation.spec import ZygoteSpec

ERROR_LENGTH = 8000
Report = Callable[[dict[str, Any] | bytes], None]


class Furnishing:
    """What new namespaces of one kind need, ready to be done."""

    def __init__(self, spec: ZygoteSpec, hidden: list[str], disk: int, mode: network.Mode) -> None:
        plan = Plan()
        self.door = furnish(plan, spec, hidden, disk, mode)
        self.table = Table(plan)


class Sandbox:
    """One sandbox, from within."""

    def __init__(
        self, spec: ZygoteSpec, message: dict[str, Any], fds: list[int], program: bytes, furnishing: Furnishing
    ) -> None:
        self._spec = spec
        self._furnishing = furnishing
        self._limits = Limits(**message["limits"])
        self._network = message["network"]
        self._listener, self._status, self._log, self._parameters, *self._cgroups = fds
        self._channel = self._cgroups.pop(0) if self._network == "egress" else None
        self._program = program
        self._code = 1

    def run(self) -> None:
        """Never returns."""
        with self._to_the_end():
            told = _read(self._parameters)
            self._enter()
            self._code = load(self._spec.entry)(socket.socket(fileno=self._listener), told, self._report)

    def prepare(self, channel: socket.socket) -> None:
        """Load the author's code, then fork whenever told to. Never returns."""
        with self._to_the_end():
            told = _read(self._parameters)
            self._listener = -1
            self._enter(keep=channel.fileno())
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
        """Fork whenever told to. Returns in the forks only: where to listen, and what each is told."""
        gc.collect()
        gc.freeze()
        self._report({"prepared": True, "reads": reads})
        listener, self._status, parameters = branches.fork_on_demand(channel, self._spec.fresh)
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

    def _enter(self, *, keep: int = -1) -> None:
        os.setsid()  # kill(0) and setpriority reach a whole process group, beyond the process namespace
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        linux.unshare(self._spec.fresh)
        self._furnishing.table.run()
        if self._furnishing.door is not None and self._channel is not None:
            network.hand_over(self._furnishing.table.result(self._furnishing.door), self._channel)
        for fd in self._cgroups:
            os.write(fd, b"0")
        linux.unshare(linux.CLONE_NEWCGROUP)
        rootfs.own_proc()
        self._keep_only_our_descriptors(keep)
        if keep < 0 and not self._cgroups and counts_processes_apart():
            linux.unshare(linux.CLONE_NEWUSER)  # last: it takes the rights over the other namespaces away
            linux.map_user(rootfs.USER_ID, rootfs.USER_ID, rootfs.USER_ID)
            limit_processes(self._limits)
        set_resource_limits(self._limits, alone=not self._cgroups)
        os.umask(0o022)
        linux.no_new_privileges()
        linux.drop_capabilities()
        linux.load_seccomp(self._program)
        gc.enable()

    def _keep_only_our_descriptors(self, one_more: int) -> None:
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        keep = {0, 1, 2, self._listener, self._status, one_more}
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in keep:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        for fd in (self._listener, self._status):
            if fd >= 0:
                os.set_inheritable(fd, False)

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


def furnish(plan: Plan, spec: ZygoteSpec, hidden: list[str], disk: int, mode: network.Mode) -> Outcome | None:
    """What new namespaces need to be lived in; what comes back is the call that opens a door, see `network.settle`."""
    if spec.base is not None:
        based.private_root(plan, size=disk, volume=spec.volume)
    else:
        rootfs.private_places(plan, size=disk, shown=hidden, volume=spec.volume)
    plan.do("sethostname", "sandbox", len("sandbox"))
    return network.settle(plan, mode)


def load(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def call(name: str) -> None:
    load(name)()
