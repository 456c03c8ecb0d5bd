"""A parent that has everything imported and forks ready sandboxes from it.

Starting Python and importing a server costs a second of CPU; forking a process that has done so costs a few
milliseconds. The parent must stay single-threaded: a lock that another thread holds at the moment of the fork is
never released in the child. That is why this module uses blocking sockets and no asyncio.

It is itself in a sandbox: a user namespace in which it may make namespaces, a process namespace of which it is the
first process (so that all that it forked dies with it), and a root with nothing of the host but its programs. What
it forks gives up every capability and loads the filter before anything of the author runs.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from aenv.isolation import based, linux, network, rootfs, seccomp
from aenv.isolation.limits import Limits, counts_processes_apart, set_resource_limits

MESSAGE = 1 << 20
MAX_FDS = 16
ERROR_LENGTH = 8000
FRESH = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
"""Namespaces of its own for each sandbox; that of processes comes with the fork, that of control groups later."""


@dataclass(frozen=True, slots=True)
class ZygoteSpec:
    """What to have ready, and what sandboxes get to see."""

    entry: str
    """``module:function`` that a sandbox runs: it takes a Listener, the parameters, and a function to report with."""
    warm: str
    """``module:function`` that the zygote runs once, to have everything imported and used."""
    shown: list[str] = field(default_factory=list)
    """Further folders to show, and to import from."""
    preload: list[str] = field(default_factory=list)
    """Modules to import for all sandboxes, as far as they can be."""
    project: str | None = None
    """A folder that each sandbox sees at /app and may change for itself."""
    user: int | None = None
    """The host's user to become, when started by root."""
    host_network: bool = False
    """Leave sandboxes in the host's network."""
    files: list[str] | None = None
    """Only these of the project's files, or folders. None: all."""
    base: str | None = None
    """A root file system to have in place of the host's."""

    @property
    def fresh(self) -> int:
        """The namespaces that each sandbox has for itself."""
        return FRESH & ~linux.CLONE_NEWNET if self.host_network else FRESH


@dataclass(frozen=True, slots=True)
class Spawn:
    """One sandbox to make."""

    id: str
    limits: Limits = field(default_factory=Limits)
    network: network.Mode = "loopback"


Report = Callable[[dict[str, Any]], None]


def main() -> None:
    """``python -m aenv.isolation.zygote``: its argument is the descriptor of the control socket.

    Started again inside of a base, it has a second one, of a file with what it had been told.
    """
    linux.die_with_parent()
    if os.getppid() == 1:
        sys.exit(0)  # the parent was gone before we could ask to be told
    with contextlib.suppress(OSError):
        os.setsid()  # away from the terminal that the server may have been started in
    control = socket.socket(fileno=int(sys.argv[1]))
    again = len(sys.argv) > 2
    if again:
        with open(int(sys.argv[2]), "rb") as file:
            spec = ZygoteSpec(**json.load(file))
    else:
        spec = ZygoteSpec(**json.loads(control.recv(MESSAGE)))
    try:
        hidden = [] if again else leave_files(spec)
        if spec.base is not None and not again:
            _start_again(spec, control)
        leave_users(spec)
    except OSError as error:
        control.send(json.dumps({"op": "failed", "error": explain(error)}).encode())
        sys.exit(1)
    linux.die_with_parent()  # once more: becoming another user has cleared it
    first = os.fork()  # only a child is in the new process namespace
    if first:
        control.close()
        _, status = os.waitpid(first, 0)
        sys.exit(os.waitstatus_to_exitcode(status) and 1)
    linux.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _Zygote(spec, control, hidden).run()


def leave_files(spec: ZygoteSpec) -> list[str]:
    """Leave the host's files, and root. What comes back is for `rootfs.private_places`."""
    owner, group = os.geteuid(), os.getegid()
    with contextlib.suppress(OSError):
        linux.leave_session_keyring()
    if owner == 0:
        linux.unshare(linux.CLONE_NEWNS)
    else:
        linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
        _map(owner, group)
    # In place of a folder that every host has and no sandbox needs: there is none to make, nor to leave behind.
    hidden: list[str] = []
    more: dict[str, Any] = {"host_network": spec.host_network, "files": spec.files}
    if spec.base is not None:
        based.build("/sys", spec.base, spec.shown, spec.project, spec.user, **more)
    else:
        shown = [*rootfs.interpreter_paths(), *spec.shown]
        hidden = rootfs.build("/sys", shown, spec.project, spec.user, **more)
    if owner == 0 and spec.user is not None:
        owner = group = spec.user
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(owner, owner, owner)
        linux.set_dumpable(True)
    return hidden


def leave_users(spec: ZygoteSpec) -> None:
    """Leave the host's users, processes and network."""
    inside = (os.geteuid(), os.getegid())
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | spec.fresh)
    _map(*inside)


def _start_again(spec: ZygoteSpec, control: socket.socket) -> None:
    """As the interpreter that is shown in the base's root; does not return."""
    told = parameters_file(asdict(replace(spec, shown=[based.HOST + path for path in spec.shown])))
    for fd in (told, control.fileno()):
        os.set_inheritable(fd, True)
    based.restart("-m", "aenv.isolation.zygote", str(control.fileno()), str(told))


def _map(user: int, group: int) -> None:
    """Make this user the sandbox's own, in the new user namespace."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{rootfs.USER_ID} {user} 1"),
        ("gid_map", f"{rootfs.USER_ID} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def explain(error: OSError) -> str:
    """What the host does not allow, and how to have it allowed."""
    said = str(error)
    if "unshare" not in said and "/proc/self" not in said:
        return said
    for path, good, command in (
        ("/proc/sys/kernel/unprivileged_userns_clone", "1", "sudo sysctl kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0",
         "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
        ("/proc/sys/user/max_user_namespaces", None, "sudo sysctl user.max_user_namespaces=15000"),
    ):  # fmt: skip
        with contextlib.suppress(OSError), open(path) as file:
            value = file.read().strip()
            if value == "0" if good is None else value != good:
                return f"this host forbids user namespaces ({path} is {value}); allow them with: {command}"
    return (
        f"this host forbids user namespaces ({said}); in a container, start it with --security-opt seccomp=unconfined"
    )


class _Zygote:
    """The loop that forks."""

    def __init__(self, spec: ZygoteSpec, control: socket.socket, hidden: list[str]) -> None:
        self._spec = spec
        self._hidden = hidden
        self._control = control
        self._children: dict[int, str] = {}
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._filter = seccomp.program()

    def run(self) -> None:
        _call(self._spec.warm)
        # Never from "/", where ``python -m`` looks first: ``import app.module`` would run the author's code in here.
        sys.path[:] = [*self._spec.shown, *(path for path in sys.path if path.strip("/."))]
        for name in self._spec.preload:
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(name)
        if not _alone() or _has_children():
            self._send({"op": "unsafe", "error": "an import left threads or processes running"})
            os._exit(1)
        gc.collect()
        gc.freeze()
        gc.disable()
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._send({"op": "ready"})
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._control:
                        self._handle(selector)
                    else:
                        os.read(woken, 4096)
                self._reap()

    def _handle(self, selector: selectors.BaseSelector) -> None:
        data, fds, _, _ = socket.recv_fds(self._control, MESSAGE, MAX_FDS)
        if not data:
            os._exit(0)  # nobody is left to fork for
        message = json.loads(data)
        if message["op"] == "kill":
            for pid, name in self._children.items():
                if name == message["id"]:
                    os.kill(pid, signal.SIGKILL)
            return
        try:
            self._fork(message, list(fds))
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(self, message: dict[str, Any], fds: list[int]) -> None:
        linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            _Sandbox(self._spec, message, fds, self._filter, self._hidden).run()
        linux.setns(self._own_pids, linux.CLONE_NEWPID)  # the next unshare is refused otherwise
        self._children[pid] = message["id"]

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            name = self._children.pop(pid, None)
            if name is not None:
                self._send({"op": "exit", "id": name, "code": os.waitstatus_to_exitcode(status)})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)


class _Sandbox:
    """The child's side of the fork: lock the door, then do the work."""

    def __init__(
        self, spec: ZygoteSpec, message: dict[str, Any], fds: list[int], program: bytes, hidden: list[str]
    ) -> None:
        self._spec = spec
        self._hidden = hidden
        self._limits = Limits(**message["limits"])
        self._network = message["network"]
        self._listener, self._status, self._log, self._parameters, *self._cgroups = fds
        self._channel = self._cgroups.pop(0) if self._network == "egress" else None
        self._program = program

    def run(self) -> None:
        """Never returns."""
        code = 1
        try:
            # Read here and not in the zygote, whose memory all later sandboxes inherit.
            with open(self._parameters, "rb") as file:
                parameters = json.load(file)
            self._enter()
            entry = _load(self._spec.entry)
            code = entry(socket.socket(fileno=self._listener), parameters, self._report)
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._report({"error": f"{type(error).__name__}: {error}", "code": "sandbox"})
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _enter(self) -> None:
        os.setsid()  # kill(0) and setpriority reach a whole process group, beyond the process namespace
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        linux.unshare(self._spec.fresh)
        if self._spec.base is not None:
            based.private_root(size=self._limits.disk)
        else:
            rootfs.private_places(size=self._limits.disk, shown=self._hidden)
        socket.sethostname("sandbox")
        network.settle(self._network, self._channel)
        for fd in self._cgroups:
            os.write(fd, b"0")
        linux.unshare(linux.CLONE_NEWCGROUP)
        self._keep_only_our_descriptors()
        if not self._cgroups and counts_processes_apart():
            linux.unshare(linux.CLONE_NEWUSER)  # last: it takes the rights over the other namespaces away
            _map(rootfs.USER_ID, rootfs.USER_ID)
        set_resource_limits(self._limits, alone=not self._cgroups)
        os.umask(0o022)
        linux.no_new_privileges()
        linux.drop_capabilities()
        linux.load_seccomp(self._program)
        gc.enable()

    def _keep_only_our_descriptors(self) -> None:
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        keep = {0, 1, 2, self._listener, self._status}
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in keep:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        os.set_inheritable(self._listener, False)
        os.set_inheritable(self._status, False)

    def _report(self, message: dict[str, Any]) -> None:
        """Tell who asked for the sandbox, once."""
        if self._status >= 0:
            if "error" in message:  # in one piece through a pipe, whatever the author's exception has to say
                text = str(message["error"]).encode(errors="replace").decode()
                message = {**message, "error": text if len(text) <= ERROR_LENGTH else f"{text[:ERROR_LENGTH]}..."}
            os.write(self._status, json.dumps(message).encode())
            os.close(self._status)
            self._status = -1


def _alone() -> bool:
    """Whether this is the only thread, once those that are just ending have ended."""
    for _ in range(100):
        if len(os.listdir("/proc/self/task")) == 1:
            return True
        time.sleep(0.01)
    return False


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _load(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def _call(name: str) -> None:
    _load(name)()


def spawn_message(spawn: Spawn) -> bytes:
    """As the zygote reads it. With it go descriptors: see `_Sandbox`; that of an ``egress`` channel comes fifth."""
    return json.dumps({"op": "spawn", **asdict(spawn)}).encode()


def parameters_file(parameters: dict[str, Any]) -> int:
    """A descriptor that only the sandbox reads, and not the zygote that it is forked from."""
    fd = os.memfd_create("parameters", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(json.dumps(parameters).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def peer_user(connection: socket.socket) -> int:
    """The user id of the process at the other end of a unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


if __name__ == "__main__":
    main()
