"""The zygote: a process with rights that has our runtime imported and makes sandboxes by forking.

Starting Python and importing a server costs a second of CPU; forking a process that has done so costs a few
milliseconds. The zygote must stay single-threaded: a lock that another thread holds at the moment of the fork is never
released in the child. That is why this module uses blocking sockets and no asyncio.

It imports nothing that is not part of this package or of its dependencies: neither an environment's code nor an
environment's packages. Those run in sandboxes and in preloaded parents (`aenv.isolation.forking.preloaded`), which
have no rights and cannot see the zygote: it is in a process namespace above theirs, and enters none of their own.

A zygote has a user namespace in which it may make namespaces, a process namespace of which it is the first process (so
that everything it forked dies with it), a procfs of that namespace, and a root with nothing of the host but programs.

docs/design/instance-creation.md has the states of what it forks, and the ways that a request can go.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from aenv.isolation.files import custom_rootfs, private_folder, rootfs
from aenv.isolation.forking import forkable, preloaded
from aenv.isolation.forking.branches import Branches
from aenv.isolation.forking.preloaded import ForkRequest, Kind, PreloadedParent
from aenv.isolation.forking.sandbox import Sandbox, SandboxSetup, call, set_up_namespaces
from aenv.isolation.forking.zygote_namespaces import explain, leave_files, leave_users
from aenv.isolation.forking.zygote_spec import MAX_FDS, MESSAGE, ZygoteSpec, parameters_file
from aenv.isolation.kernel import linux, ptrace, seccomp
from aenv.isolation.kernel.syscall_plan import SyscallPlan
from aenv.isolation.limits.cgroups import Limits

PAUSE = 0.01
"""Seconds after a request in which nothing is pre-forked. The new instance has a first call to answer, and a fork,
which the zygote waits for, would delay the end of a sandbox by milliseconds."""
FORK_SECONDS = 20
"""Time limit for a preloaded parent to fork, and for its child to give up its rights. It takes milliseconds. The server
waits longer for the whole request: `FORK_ANSWER_SECONDS` of engines/native/zygote_handle.py."""
HOLD_SECONDS = 3
"""Time limit for an instance to reach the point where it can be forked, once it has said that it is about to. It takes
microseconds, and the zygote does nothing else meanwhile."""
STEP_SECONDS = 10
"""Time limit for a stopped child to become an instance."""
DYING_SECONDS = 0.05
"""Time for a killed parent to end, after it could not be forked. It takes microseconds."""
KINDS = 16
"""Setups to cache, by kind of sandbox."""
_WALL = 0x40000000  # for waitpid: children that were made by clone, too
_CHILD_SIGNALS = (signal.SIGCHLD,)


def main() -> None:
    """Run ``python -m aenv.isolation.forking.zygote``: its argument is the descriptor of the control socket.

    Started again inside a base, it has a second argument: the descriptor of a file with its `ZygoteSpec`.
    """
    linux.die_with_parent()
    if os.getppid() == 1:
        sys.exit(0)  # the server ended before `die_with_parent`
    with contextlib.suppress(OSError):
        os.setsid()  # away from the terminal that the server may have been started in
    with contextlib.suppress(OSError):
        linux.thread_number_offset()  # while process numbers are the host's
    control = socket.socket(fileno=int(sys.argv[1]))
    again = len(sys.argv) > 2
    if again:
        with open(int(sys.argv[2]), "rb") as file:
            spec = ZygoteSpec.read(file.read())
    else:
        spec = ZygoteSpec.read(control.recv(MESSAGE))
    try:
        hidden = [] if again else leave_files(spec)
        if spec.base is not None and not again:
            _start_again(spec, control)
        leave_users(spec)
    except private_folder.TooLargeError as error:
        control.send(json.dumps({"op": "failed", "error": str(error), "code": "load"}).encode())
        sys.exit(1)
    except OSError as error:
        control.send(json.dumps({"op": "failed", "error": explain(error)}).encode())
        sys.exit(1)
    linux.die_with_parent()  # once more: becoming another user has cleared it
    first = os.fork()  # only a child is in the new process namespace
    if first:
        control.close()
        _, status = os.wait()
        sys.exit(os.waitstatus_to_exitcode(status) and 1)
    linux.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        _mount_own_proc()
    except OSError as error:
        control.send(json.dumps({"op": "failed", "error": explain(error)}).encode())
        sys.exit(1)
    Zygote(spec, control, hidden).run()


def _mount_own_proc() -> None:
    """Replace the host's procfs by one of this process namespace, and mount the one that sandboxes need."""
    linux.mount("proc", "/proc", "proc", rootfs.PROC_FLAGS)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    linux.unshare(linux.CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        try:
            rootfs.mount_spare_proc()
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    linux.setns(own, linux.CLONE_NEWPID)
    os.close(own)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, f"mounting a procfs: {os.strerror(code)}")


def _start_again(spec: ZygoteSpec, control: socket.socket) -> None:
    """Execute this program again with the interpreter that the base's root shows. Does not return."""
    spec_file = parameters_file(asdict(replace(spec, shown=[custom_rootfs.HOST + path for path in spec.shown])))
    for fd in (spec_file, control.fileno()):
        os.set_inheritable(fd, True)
    custom_rootfs.exec_interpreter(
        "-m",
        "aenv.isolation.forking.zygote",
        str(control.fileno()),
        str(spec_file),
        variables=private_folder.pass_to_exec(),
    )


def _kind(message: dict[str, Any]) -> Kind:
    return message["limits"]["disk"], message["network"]


def _fork_request(name: str, message: dict[str, Any], fds: list[int]) -> ForkRequest:
    first_group = 5 if message["network"] == "egress" else 4
    return ForkRequest(name, Limits(**message["limits"]), fds[:4], fds[4:first_group], fds[first_group:])


@dataclass(frozen=True, slots=True)
class PreforkedSandbox:
    """A sandbox made ahead of demand: it has its namespaces, has rehearsed a call, and has no foreign code."""

    pid: int
    kind: Kind
    mailbox: socket.socket
    """Closing it before a request is sent ends the sandbox."""

    def assign(self, message: bytes, fds: list[int]) -> int:
        """Send it a request; return its process id, or 0 if it is gone."""
        try:
            socket.send_fds(self.mailbox, [message], fds)
        except OSError:
            return 0
        return self.pid


class Zygote:
    """The loop that receives requests and forks."""

    def __init__(self, spec: ZygoteSpec, control: socket.socket, hidden: list[str]) -> None:
        self._spec = spec
        self._hidden = hidden
        self._control = control
        self._children: dict[int, str] = {}
        """Names of running sandboxes and of the preloaded parent, by process id."""
        self._parent: PreloadedParent | None = None
        self._requests: dict[str, ForkRequest] = {}
        self._setups: dict[Kind, SandboxSetup] = {}
        self._isolating: tuple[Kind, SyscallPlan, bool] | None = None
        self._selector = selectors.DefaultSelector()
        self._make_ahead_at: float | None = None
        self._preforked: PreforkedSandbox | None = None
        self._branches = Branches(self._plan, preloaded.fork_flags(spec.fresh), self._send)
        self._recent: Kind | None = None
        """The kind of the last sandbox that loaded its code itself."""
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._filter = seccomp.program()
        self._clone_flags = preloaded.fork_flags(spec.fresh)

    def run(self) -> None:
        forkable.record_fork_handlers()
        call(self._spec.warm)
        # Never from "/", where ``python -m`` looks first.
        sys.path[:] = [path for path in sys.path if path.strip("/.")]
        if not forkable.alone() or forkable.has_children():
            self._send({"op": "failed", "error": "an import left threads or processes running"})
            os._exit(1)
        gc.collect()
        gc.freeze()
        gc.disable()
        linux.collapse_heap()
        sys.dont_write_bytecode = True  # in a layer that goes with the sandbox
        self._send(self._ready())
        self._serve()

    def _ready(self) -> dict[str, Any]:
        """Return the message that tells the server that requests can be sent."""
        return {"op": "ready"}

    def _serve(self) -> None:
        linux.set_dumpable(False)
        os.chdir("/" if self._spec.base is None else custom_rootfs.PRISTINE)
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGALRM, _too_slow)
        self._when_readable(self._control, self._handle)
        self._when_readable(woken, lambda: os.read(woken, 4096))
        while True:
            for key, _ in self._selector.select(self._timeout()):
                key.data()
            self._reap()
            if self._make_ahead_at is not None and time.monotonic() >= self._make_ahead_at:
                self._make_ahead_at = None
                self._make_ahead()

    def _timeout(self) -> float | None:
        """Return the seconds until the next pre-fork; None: there is none."""
        return None if self._make_ahead_at is None else max(self._make_ahead_at - time.monotonic(), 0.0)

    def _when_readable(self, file: socket.socket | int, act: Callable[[], object]) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)

    def _handle(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._control, MESSAGE, MAX_FDS)
        if not data:
            os._exit(0)  # the server is gone
        message = json.loads(data)
        op, name = message["op"], message["id"]
        try:
            if op == "kill":
                self._kill(name)
            elif op == "keep":
                self._keep(set(message["ids"]))
            elif op == "multiply":
                self._children[self._fork(lambda: self._multiply(socket.socket(fileno=fds[0])))] = name
            elif op == "prepare":
                self._prepare(name, message, fds)
            elif op == "branch":
                self._branch(name, message, fds)
                fds = []  # they belong to the request
            elif op in ("hold", "release"):
                self._hold_or_release(op, name)
            elif op in ("fork", "checkpoint"):
                self._fork_branch(op, name, message, fds)
                fds = []
            else:
                self._spawn(name, message, data, fds)
        except OSError as error:
            self._refuse(name, fds, error)
        finally:
            for fd in fds:
                os.close(fd)

    def _refuse(self, name: str, fds: list[int], error: OSError) -> None:
        """Answer a request that failed in the zygote, for example because there are no processes left."""
        if len(fds) > 1:
            with contextlib.suppress(OSError):
                os.write(
                    fds[1],
                    json.dumps(
                        {
                            "error": f"the sandbox could not be started: {error}",
                            "code": "zygote",
                            "errno": error.errno,
                        }
                    ).encode(),
                )
        self._send({"op": "exit", "id": name, "code": -9})

    def _kill(self, name: str) -> None:
        for pid in [pid for pid, other in self._children.items() if other == name]:
            self._end(pid)
        if name in self._requests:
            self._fail(self._requests[name], "the sandbox was stopped")
        elif self._make_ahead_at:  # and not 0.0, when requests wait
            self._make_ahead_at = time.monotonic() + PAUSE  # the end of this one is reported first

    def _end(self, pid: int) -> None:
        """End a sandbox, or what else was forked."""
        os.kill(pid, signal.SIGKILL)

    def _spawn(self, name: str, message: dict[str, Any], data: bytes, fds: list[int]) -> None:
        """Make a sandbox that loads its code itself. Use the pre-forked one if it is of that kind and alive."""
        kind = _kind(message)
        if not message["fork"]:
            sandbox = self._sandbox(kind)
            self._children[self._fork(lambda: sandbox.run(message, fds))] = name
            return
        preforked, self._preforked = self._preforked, None
        pid = preforked.assign(data, fds) if preforked is not None and preforked.kind == kind else 0
        if preforked is not None:
            preforked.mailbox.close()
        if not pid:
            sandbox = self._sandbox(kind)
            pid = self._fork(lambda: sandbox.run(message, fds))
        self._children[pid] = name
        if self._spec.volume is None and self._spec.disk is None:  # a volume has one writer at a time
            self._recent = kind
            self._make_ahead_at = time.monotonic() + PAUSE

    def _make_ahead(self) -> None:
        """Pre-fork what the next request will probably need."""
        if self._parent is not None:
            self._make_more(self._parent)
        kind = self._recent
        if self._preforked is None and kind is not None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sandbox = self._sandbox(kind)
            with theirs:
                self._preforked = PreforkedSandbox(self._fork(lambda: sandbox.wait(theirs)), kind, ours)

    def _sandbox(self, kind: Kind) -> Sandbox:
        if kind not in self._setups:
            if len(self._setups) >= KINDS:
                self._setups.clear()
            self._setups[kind] = SandboxSetup(self._spec, self._hidden, *kind)
        return Sandbox(self._spec, self._filter, self._setups[kind])

    def _keep(self, names: set[str]) -> None:
        """End everything that a new server does not know, and report the rest."""
        self._branches.release_all()
        for request in list(self._requests.values()):
            self._fail(request, "the server that requested it has ended")
        for pid in [pid for pid, name in self._children.items() if name not in names]:
            self._end(pid)
            while os.WIFSTOPPED(os.waitpid(pid, _WALL)[1]):
                pass
            self._branches.forget(pid)
            del self._children[pid]
            if self._parent is not None and pid == self._parent.pid:
                self._forget_parent()
        if self._parent is not None:
            self._discard_stopped(self._parent)
        if self._preforked is not None:
            self._preforked.mailbox.close()
            self._preforked = None
        self._reap()
        self._send({"op": "kept", "ids": list(self._children.values())})

    def _multiply(self, control: socket.socket) -> None:
        """Become another zygote like this one. Runs in a fork, the first process of a new process namespace."""
        linux.unshare(linux.CLONE_NEWNS)
        linux.umount("/proc")
        linux.mount("proc", "/proc", "proc", rootfs.PROC_FLAGS)
        Zygote(self._spec, control, self._hidden)._serve()

    # --- a preloaded parent and its forks

    def _prepare(self, name: str, message: dict[str, Any], fds: list[int]) -> None:
        """Start a preloaded parent, in a process namespace whose first process is `_idle_init`.

        The parent is not that first process: its forks, each the first of its own namespace, then see that their
        process id changed, which is how libraries such as OpenSSL notice a fork. And its forks outlive it.
        """
        kind = _kind(message)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        forkable = message["forkable"]
        program = seccomp.program(traced=preloaded.traced_calls(self._spec.fresh, forkable=forkable))
        setup = SandboxSetup(self._spec, self._hidden, *kind, carry=True)
        sandbox = Sandbox(self._spec, program, setup, forks=True)
        first_group = 5 if message["network"] == "egress" else 4
        filters = preloaded.own_filters() + sandbox.filters(alone=len(fds) <= first_group)
        linux.unshare(linux.CLONE_NEWPID)
        try:
            init = os.fork()
            if init == 0:
                _idle_init(self._filter)
            with theirs:
                pid = os.fork()
                if pid == 0:
                    sandbox.prepare(message, fds, theirs)
        finally:
            linux.setns(self._own_pids, linux.CLONE_NEWPID)
        self._children[pid] = name
        self._parent = PreloadedParent(pid, init, ours, kind, filters, forkable=forkable)

    def _branch(self, name: str, message: dict[str, Any], fds: list[int]) -> None:
        """Serve a request with a fork of the preloaded parent."""
        request = _fork_request(name, message, fds)
        self._requests[name] = request
        parent = self._parent
        if parent is None:
            self._fail(request, "there is no preloaded parent")
            return
        parent.waiting.append(request)
        self._assign(parent)
        if parent.waiting:
            self._make_more(parent)
        else:
            self._make_ahead_at = time.monotonic() + PAUSE

    def _make_more(self, parent: PreloadedParent) -> None:
        """Fork one more child, if one is wanted. Further ones are forked in later turns of the loop, after new
        requests.
        """
        if not parent.wants_child:
            return
        try:
            with _bounded(FORK_SECONDS):
                if parent.forkable:
                    self._make_forkable(parent)
                    child = None
                else:
                    plan, has_egress = self._plan(parent.kind)
                    child = parent.fork(plan, self._clone_flags, has_egress=has_egress)
        except ptrace.ProcessEnded as error:
            self._ended(parent.pid, os.waitstatus_to_exitcode(error.status))
            return
        except (preloaded.UnsafeParent, TimeoutError):
            parent.ahead = 0
            os.kill(parent.pid, signal.SIGKILL)  # its end fails all waiting requests
            return
        except OSError as error:
            if _ends(parent.pid):
                self._reap()  # which reports its end, and fails all waiting requests
                return
            self._could_not_fork(parent, str(error))
        else:
            if child is not None:
                parent.stopped.append(child)
                parent.ahead = preloaded.AHEAD
                self._assign(parent)
        if parent.wants_child:
            self._make_ahead_at = 0.0 if parent.waiting else time.monotonic() + PAUSE

    def _make_forkable(self, parent: PreloadedParent) -> None:
        """Serve the oldest request with an instance that can be forked while it runs."""
        request = parent.next_request()
        if request is None:
            return
        try:
            pid = self._branches.make(parent, request)
        except BaseException:
            parent.waiting.appendleft(request)
            raise
        self._began(pid, request)

    def _began(self, pid: int, request: ForkRequest) -> None:
        self._children[pid] = request.id
        self._requests.pop(request.id, None)
        request.close()

    def _hold_or_release(self, op: str, name: str) -> None:
        """Stop an instance to fork it, or let it go on."""
        if op == "release":
            self._branches.release(name)
            return
        try:
            with _bounded(HOLD_SECONDS):
                self._branches.hold(name)
        except ptrace.ProcessEnded as error:
            self._send({"op": "held", "id": name, "error": "the instance has ended"})
            self._ended(error.pid, os.waitstatus_to_exitcode(error.status))
        except OSError as error:
            self._branches.release(name)
            self._send({"op": "held", "id": name, "error": error.strerror or str(error)})
        else:
            self._send({"op": "held", "id": name})

    def _fork_branch(self, op: str, name: str, message: dict[str, Any], fds: list[int]) -> None:
        """Fork an instance that is held, or a checkpoint."""
        request = _fork_request(name, message, fds)
        self._requests[name] = request
        try:
            with _bounded(FORK_SECONDS):
                pid = self._branches.fork(message["source"], request, stay=op == "checkpoint")
        except ptrace.ProcessEnded as error:  # the preloaded parent; nothing was made yet
            self._ended(error.pid, os.waitstatus_to_exitcode(error.status))
            self._fork_branch(op, name, message, fds)  # it is known to have ended now
        except OSError as error:
            self._fail(request, error.strerror or str(error))
        except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:  # caused by what is copied
            self._fail(request, f"{type(error).__name__}: {error}")
        else:
            if op == "checkpoint":
                with contextlib.suppress(OSError):
                    os.write(request.fds[1], b'{"ready": true}')
            self._began(pid, request)

    def _plan(self, kind: Kind, *, forkable: bool = False) -> tuple[SyscallPlan, bool]:
        known = self._isolating
        if known is None or known[0] != kind:
            layer_fd = preloaded.LAYER if forkable else -1
            known = kind, *preloaded.isolating(partial(self._set_up_namespaces, layer_fd), kind)
            self._isolating = known
        return known[1:]

    def _set_up_namespaces(self, layer_fd: int, plan: SyscallPlan, disk: int, mode: Any) -> Any:
        return set_up_namespaces(plan, self._spec, self._hidden, disk, mode, layer_fd=layer_fd)

    def _assign(self, parent: PreloadedParent) -> None:
        """Turn stopped children into requested instances."""
        while parent.stopped and (request := parent.next_request()) is not None:
            child = parent.stopped.popleft()
            try:
                with _bounded(STEP_SECONDS):
                    child.become(request)
            except OSError as error:
                child.close()
                request.attempts += 1
                if request.attempts < preloaded.ATTEMPTS and self._parent is parent:  # the child may have been killed
                    parent.waiting.appendleft(request)
                else:
                    self._fail(request, str(error))
                continue
            child.close()
            self._children[child.pid] = request.id
            del self._requests[request.id]
            request.close()

    def _discard_stopped(self, parent: PreloadedParent) -> None:
        parent.ahead = 0
        while parent.stopped:
            parent.stopped.popleft().close()

    def _could_not_fork(self, parent: PreloadedParent, reason: str) -> None:
        """Fail the oldest request. Pre-fork nothing until a request succeeds."""
        parent.ahead = 0
        request = parent.next_request()
        if request is not None:
            self._fail(request, reason)

    def _forget_parent(self) -> None:
        """Forget the preloaded parent, which has ended, and fail the requests that wait for it."""
        parent, self._parent = self._parent, None
        assert parent is not None
        parent.ended = True
        parent.channel.close()
        self._discard_stopped(parent)
        for request in parent.waiting:
            self._fail(request, "the preloaded parent has ended")

    def _fail(self, request: ForkRequest, reason: str) -> None:
        request.fail(reason)
        if self._requests.pop(request.id, None) is not None:
            self._send({"op": "exit", "id": request.id, "code": -9})

    # --- processes

    def _fork(self, run: Callable[[], None]) -> int:
        """Fork into a new process namespace."""
        linux.unshare(linux.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                run()
        finally:
            linux.setns(self._own_pids, linux.CLONE_NEWPID)  # the next unshare is refused otherwise
        return pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | _WALL)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._stopped(pid, status)
            else:
                self._ended(pid, os.waitstatus_to_exitcode(status))

    def _stopped(self, pid: int, status: int) -> None:
        """Kill a child whose parent was given up. Leave alone a stopped child that got a signal."""
        if self._branches.stopped(pid, status):
            return
        if self._parent is None or all(child.pid != pid for child in self._parent.stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _ended(self, pid: int, code: int) -> None:
        ended = self._branches.ended(pid, code)
        if ended is None:
            return  # reported once its door has ended, too
        pid, code = ended
        name = self._children.pop(pid, None)
        if name is not None:
            self._send({"op": "exit", "id": name, "code": code})
        else:
            self._forget_ahead(pid)
        # After the report: a request that fails while its parent seems alive marks the code as unfit for forking.
        if self._parent is not None and pid == self._parent.pid:
            self._forget_parent()

    def _forget_ahead(self, pid: int) -> None:
        """Forget a pre-forked sandbox or stopped child that was killed."""
        if self._preforked is not None and self._preforked.pid == pid:
            self._preforked.mailbox.close()
            self._preforked = None
        if self._parent is not None:
            for child in [child for child in self._parent.stopped if child.pid == pid]:
                self._parent.stopped.remove(child)
                child.gone()
                child.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)


def _idle_init(program: bytes) -> None:
    """Run as the first process of a process namespace, without rights and descriptors: reap orphans. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():  # without handlers, the kernel drops signals from inside the namespace
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        os.closerange(0, 1 << 20)
        linux.set_dumpable(False)
        linux.no_new_privileges()
        linux.drop_capabilities()
        linux.load_seccomp(program)
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                signal.sigwait({signal.SIGCHLD})
    finally:
        os._exit(1)


def _ends(pid: int) -> bool:
    """Return whether a child has ended, or does so at once: one that is being killed cannot be traced any more."""
    pidfd = os.pidfd_open(pid)
    try:
        return bool(select.select([pidfd], [], [], DYING_SECONDS)[0])
    finally:
        os.close(pidfd)


@contextlib.contextmanager
def _bounded(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the body after this many seconds. Its body traces a process, and forks none.

    Every stop of a traced process is a SIGCHLD. The body waits for each by itself, so they are held back, and one comes
    afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _CHILD_SIGNALS)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _too_slow(*_: object) -> None:
    raise OSError(errno.ETIMEDOUT, "a step of a new sandbox did not end")


if __name__ == "__main__":
    main()
