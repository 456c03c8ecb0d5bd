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
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from aenv.isolation import based, branches, forkable, linux, network, ptrace, rootfs, seccomp
from aenv.isolation.branches import Branch, Builder, Parent
from aenv.isolation.limits import Limits, counts_processes_apart, limit_processes, set_resource_limits

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
    prepare: str
    """``module:function`` that loads code for others to begin with: it takes the parameters and a function to report
    with, and returns what a fork then calls as ``entry`` is called, or nothing after reporting why not."""
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
    op: str = "spawn"
    """``spawn`` one that loads its code itself, ``prepare`` one that others are forked from, ``branch`` off from that;
    ``multiply``: make a zygote like this one."""
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
    building, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first = os.fork()  # only a child is in the new process namespace
    if first:
        control.close()
        building.close()
        if os.fork() == 0:
            branches.build_on_demand(requests, spec.fresh, lambda wish, fds: _furnish_for(spec, hidden, wish, fds))
        requests.close()
        ended, status = os.wait()
        while ended != first:  # it cannot end before the other has been seen to
            ended, status = os.wait()
        sys.exit(os.waitstatus_to_exitcode(status) and 1)
    linux.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    requests.close()
    _Zygote(spec, control, hidden, building).run()


def leave_files(spec: ZygoteSpec) -> list[str]:
    """Leave the host's files, and root. What comes back is for `rootfs.private_places`."""
    owner, group = os.geteuid(), os.getegid()
    with contextlib.suppress(OSError):
        linux.leave_session_keyring()
    if owner == 0:
        linux.unshare(linux.CLONE_NEWNS)
    else:
        linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
        linux.map_user(rootfs.USER_ID, owner, group)
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
    linux.map_user(rootfs.USER_ID, *inside)


def _start_again(spec: ZygoteSpec, control: socket.socket) -> None:
    """As the interpreter that is shown in the base's root; does not return."""
    told = parameters_file(asdict(replace(spec, shown=[based.HOST + path for path in spec.shown])))
    for fd in (told, control.fileno()):
        os.set_inheritable(fd, True)
    based.restart("-m", "aenv.isolation.zygote", str(control.fileno()), str(told))


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

    def __init__(self, spec: ZygoteSpec, control: socket.socket, hidden: list[str], building: socket.socket) -> None:
        self._spec = spec
        self._hidden = hidden
        self._control = control
        self._building = building
        self._children: dict[int, str] = {}
        self._parent: Parent | None = None
        self._branches: dict[str, Branch] = {}  # that are being made
        self._unbuilt: deque[Branch] = deque()
        self._builders: deque[Builder] = deque()
        self._coming = 0
        self._early: set[int] = set()  # stopped at birth, before the parent was seen to have forked them
        self._selector = selectors.DefaultSelector()
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._filter = seccomp.program()
        self._movable = seccomp.program(movable=True)

    def run(self) -> None:
        _call(self._spec.warm)
        # Never from "/", where ``python -m`` looks first: ``import app.module`` would run the author's code in here.
        sys.path[:] = [*self._spec.shown, *(path for path in sys.path if path.strip("/."))]
        for name in self._spec.preload:
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(name)
        if not forkable.alone() or forkable.has_children():
            self._send({"op": "unsafe", "error": "an import left threads or processes running"})
            os._exit(1)
        gc.collect()
        gc.freeze()
        gc.disable()
        linux.collapse_heap()
        sys.dont_write_bytecode = True  # in a layer that goes with the sandbox
        self._send({"op": "ready"})
        self._serve()

    def _serve(self) -> None:
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._when_readable(self._control, self._handle)
        self._when_readable(woken, lambda: os.read(woken, 4096))
        while True:
            for key, _ in self._selector.select():
                key.data()
            self._reap()

    def _when_readable(self, file: socket.socket | int, act: Callable[[], object]) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)

    def _handle(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._control, MESSAGE, MAX_FDS)
        if not data:
            os._exit(0)  # nobody is left to fork for
        message = json.loads(data)
        op, name = message["op"], message["id"]
        try:
            if op == "kill":
                for pid in [pid for pid, other in self._children.items() if other == name]:
                    os.kill(pid, signal.SIGKILL)
                if name in self._branches:
                    self._give_up(self._branches[name], "it was stopped")
            elif op == "multiply":
                self._fork(name, lambda: self._multiply(socket.socket(fileno=fds[0])))
            elif op == "prepare":
                self._prepare(name, message, fds)
            elif op == "branch":
                self._branch(name, message, fds)
                fds = []  # until it is forked
            else:
                self._fork(name, lambda: _Sandbox(self._spec, message, fds, self._filter, self._hidden).run())
        finally:
            for fd in fds:
                os.close(fd)

    def _multiply(self, control: socket.socket) -> None:
        """In a fork: be one like this."""
        _Zygote(self._spec, control, self._hidden, self._building)._serve()

    def _prepare(self, name: str, message: dict[str, Any], fds: list[int]) -> None:
        """Have the author's code loaded by a process that others are then forked from."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = os.fork()
            if pid == 0:
                _Sandbox(self._spec, message, fds, self._movable, self._hidden).prepare(theirs)
        self._children[pid] = name
        self._parent = Parent(pid, ours, self._give_up)
        self._bring_together()

    def _branch(self, name: str, message: dict[str, Any], fds: list[int]) -> None:
        """Have the parent fork, and a builder build for its child."""
        wish = {"limits": message["limits"], "network": message["network"]}
        doors = 5 if message["network"] == "egress" else 4
        counted = Limits(**message["limits"]) if not fds[doors:] and counts_processes_apart() else None
        branch = self._branches[name] = Branch(name, wish, fds[:4], fds[4:doors], fds[doors:], counted)
        self._unbuilt.append(branch)
        self._bring_together()

    def _bring_together(self) -> None:
        """Give those that are to be made a builder, and have one more come for the next."""
        while self._unbuilt and self._builders:
            branch = self._unbuilt.popleft()
            if branch.given_up:
                continue
            branch.builder = self._builders.popleft()
            if self._parent is None:
                self._give_up(branch, "there is nothing to fork it from")
            else:
                self._parent.add(branch)
        while self._coming + len(self._builders) <= len(self._unbuilt):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    socket.send_fds(self._building, [b"come"], [theirs.fileno()])
                except OSError:  # who forks them has been killed
                    ours.close()
                    while self._unbuilt:
                        self._give_up(self._unbuilt.popleft(), "there is nobody to build for it")
                    return
            self._coming += 1
            self._when_readable(ours, partial(self._heard, Builder(ours)))

    def _heard(self, builder: Builder) -> None:
        """A builder has come, or has done its work."""
        said, fds, _, _ = socket.recv_fds(builder.link, branches.MESSAGE, 1)
        if fds:
            builder.pidfd = fds[0]
            self._coming -= 1
            self._builders.append(builder)
            self._bring_together()
            return
        self._selector.unregister(builder.link)
        branch = next((b for b in self._branches.values() if b.builder is builder), None)
        if branch is None:  # it was killed
            if builder in self._builders:
                self._builders.remove(builder)
            else:
                self._coming -= 1
            builder.close()
            self._bring_together()
            return
        try:
            if said != b"done":
                raise OSError(0, said.decode(errors="replace") or "its builder has ended")
            self._children[branches.settle(branch)] = branch.id
        except OSError as error:
            self._give_up(branch, str(error))
        else:
            del self._branches[branch.id]
            branch.close()

    def _give_up(self, branch: Branch, why: str) -> None:
        if branch.builder is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(branch.builder.link)
        branch.give_up(why)
        if self._branches.pop(branch.id, None) is not None:
            self._send({"op": "exit", "id": branch.id, "code": -9})

    def _fork(self, name: str, run: Callable[[], None]) -> int:
        linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            run()
        linux.setns(self._own_pids, linux.CLONE_NEWPID)  # the next unshare is refused otherwise
        self._children[pid] = name
        return pid

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._stopped(pid, status)
                continue
            code = os.waitstatus_to_exitcode(status)
            if self._parent is not None and pid == self._parent.pid:
                self._parent.end()
                self._parent = None
            name = self._children.pop(pid, None)
            if name is not None:
                self._send({"op": "exit", "id": name, "code": code})

    def _stopped(self, pid: int, status: int) -> None:
        """Something that is being traced stopped: the parent, for having forked, or the newborn itself."""
        parent = self._parent
        if parent is None or pid != parent.pid:
            self._early.add(pid)
            return
        child = ptrace.forked(pid, status)
        if child is None:
            ptrace.carry_on(pid, status)
            return
        ptrace.release(pid)
        waited = child in self._early
        self._early.discard(child)
        branch, parent.asked = parent.asked, None
        assert branch is not None  # it is traced only while it is asked to fork one
        try:
            born = ptrace.Stopped(child, waited=waited)
            born.kill() if branch.given_up else branch.born(born)
        except OSError as error:
            self._give_up(branch, str(error))
        parent.next()

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
        self._code = 1

    def run(self) -> None:
        """Never returns."""
        with self._to_the_end():
            parameters = self._read_parameters()
            self._enter()
            self._code = _load(self._spec.entry)(socket.socket(fileno=self._listener), parameters, self._report)

    def prepare(self, channel: socket.socket) -> None:
        """Load the author's code, then fork whenever told to. Never returns."""
        with self._to_the_end():
            parameters = self._read_parameters()
            self._listener = -1
            self._enter(keep=channel.fileno())
            with forkable.Watch() as watch:
                resume = _load(self._spec.prepare)(parameters, self._report)
            if resume is None:
                return
            unfit = watch.why_not()
            if unfit is not None:
                self._report({"unfit": unfit})
                return
            gc.collect()
            gc.freeze()
            self._report({"prepared": True})
            self._listener, self._status, self._log, self._parameters = branches.fork_on_demand(
                channel, self._spec.fresh, 4
            )
            parameters = self._read_parameters()
            os.dup2(self._log, 1)
            os.dup2(self._log, 2)
            os.close(self._log)
            self._code = resume(socket.socket(fileno=self._listener), parameters, self._report)

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

    def _read_parameters(self) -> dict[str, Any]:
        """Here and not in the zygote, whose memory all later sandboxes inherit."""
        with open(self._parameters, "rb") as file:
            parameters: dict[str, Any] = json.load(file)
        return parameters

    def _enter(self, *, keep: int = -1) -> None:
        os.setsid()  # kill(0) and setpriority reach a whole process group, beyond the process namespace
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        linux.unshare(self._spec.fresh)
        _furnish(self._spec, self._hidden, self._limits, self._network, self._channel, self._cgroups)
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

    def _report(self, message: dict[str, Any]) -> None:
        """Tell who asked for the sandbox, once."""
        if self._status >= 0:
            if "error" in message:  # in one piece through a pipe, whatever the author's exception has to say
                text = str(message["error"]).encode(errors="replace").decode()
                message = {**message, "error": text if len(text) <= ERROR_LENGTH else f"{text[:ERROR_LENGTH]}..."}
            os.write(self._status, json.dumps(message).encode())
            os.close(self._status)
            self._status = -1


def _furnish_for(spec: ZygoteSpec, hidden: list[str], wish: dict[str, Any], fds: list[int]) -> None:
    """In a builder: the same for what is still to come."""
    channel = fds.pop(0) if wish["network"] == "egress" else None
    _furnish(spec, hidden, Limits(**wish["limits"]), wish["network"], channel, fds)


def _furnish(
    spec: ZygoteSpec, hidden: list[str], limits: Limits, mode: network.Mode, channel: int | None, cgroups: list[int]
) -> None:
    """What new namespaces need to be lived in."""
    if spec.base is not None:
        based.private_root(size=limits.disk)
    else:
        rootfs.private_places(size=limits.disk, shown=hidden)
    socket.sethostname("sandbox")
    network.settle(mode, channel)
    for fd in cgroups:
        os.write(fd, b"0")
    linux.unshare(linux.CLONE_NEWCGROUP)


def _load(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def _call(name: str) -> None:
    _load(name)()


def spawn_message(spawn: Spawn) -> bytes:
    """As the zygote reads it. With it go descriptors: see `_Sandbox`; that of an ``egress`` channel comes fifth."""
    return json.dumps(asdict(spawn)).encode()


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
