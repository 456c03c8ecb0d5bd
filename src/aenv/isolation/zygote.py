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
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from aenv.isolation import based, branches, forkable, linux, ptrace, seccomp
from aenv.isolation.branches import Branch, Newborn, Parent
from aenv.isolation.builder import WALL
from aenv.isolation.leaving import explain, leave_files, leave_users
from aenv.isolation.limits import Limits
from aenv.isolation.sandbox import Furnishing, Sandbox, call, furnish
from aenv.isolation.spec import MAX_FDS, MESSAGE, ZygoteSpec, parameters_file

BREATH = 0.01
"""Seconds in which nothing is made ahead: who has been given one has a first call to make."""
LOOK = 0.05
"""Seconds after which to look for builders that have ended: they send no signal."""


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
            spec = ZygoteSpec.read(file.read())
    else:
        spec = ZygoteSpec.read(control.recv(MESSAGE))
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
        _, status = os.wait()
        sys.exit(os.waitstatus_to_exitcode(status) and 1)
    linux.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _Zygote(spec, control, hidden).run()


def _start_again(spec: ZygoteSpec, control: socket.socket) -> None:
    """As the interpreter that is shown in the base's root; does not return."""
    told = parameters_file(asdict(replace(spec, shown=[based.HOST + path for path in spec.shown])))
    for fd in (told, control.fileno()):
        os.set_inheritable(fd, True)
    based.restart("-m", "aenv.isolation.zygote", str(control.fileno()), str(told))


def _kind(message: dict[str, Any]) -> branches.Kind:
    """Of the sandbox that is asked for."""
    return message["limits"]["disk"], message["network"]


@dataclass(frozen=True, slots=True)
class Blank:
    """A sandbox that is nobody's yet: it has namespaces of its own, and nothing of the author's."""

    pid: int
    kind: branches.Kind
    mailbox: socket.socket
    """It ends when this is closed before it has got something."""

    def be_asked_for(self, message: bytes, fds: list[int]) -> int:
        """Its process id; 0 when it is not there any more."""
        try:
            socket.send_fds(self.mailbox, [message], fds)
        except OSError:
            return 0
        return self.pid


class _Zygote:
    """The loop that forks."""

    def __init__(self, spec: ZygoteSpec, control: socket.socket, hidden: list[str]) -> None:
        self._spec = spec
        self._hidden = hidden
        self._control = control
        self._children: dict[int, str] = {}
        self._parent: Parent | None = None
        self._branches: dict[str, Branch] = {}  # that are being made
        self._builders = branches.Builders(spec.fresh, lambda plan, *wish: furnish(plan, spec, hidden, *wish))
        self._early: set[int] = set()  # stopped at birth, before the parent was seen to have forked them
        self._furnishings: dict[branches.Kind, Furnishing] = {}
        self._selector = selectors.DefaultSelector()
        self._again: float | None = None
        """When to make something ahead."""
        self._blank: Blank | None = None
        self._wanted: branches.Kind | None = None
        """What those were that loaded their code themselves, of late."""
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._filter = seccomp.program()
        self._movable = seccomp.program(movable=True)

    def run(self) -> None:
        forkable.note_who_is_told()
        call(self._spec.warm)
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
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._reap()
            if self._again is not None and time.monotonic() >= self._again:
                self._again = None
                self._make_ahead()

    def _patience(self) -> float | None:
        """Seconds to wait for something to happen."""
        if self._again is not None:
            return max(self._again - time.monotonic(), 0.0)
        return LOOK if self._branches or self._builders.ending else None

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
            elif op == "keep":
                self._keep(set(message["ids"]))
            elif op == "multiply":
                self._children[self._fork(lambda: self._multiply(socket.socket(fileno=fds[0])))] = name
            elif op == "prepare":
                self._prepare(name, message, fds)
            elif op == "branch":
                self._branch(name, message, fds)
                fds = []  # until it is forked
            else:
                self._spawn(name, message, data, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _spawn(self, name: str, message: dict[str, Any], data: bytes, fds: list[int]) -> None:
        """One that loads its code itself: the one that was made ahead, if it is of that kind and there."""
        kind = _kind(message)
        blank, self._blank = self._blank, None
        pid = blank.be_asked_for(data, fds) if blank is not None and blank.kind == kind else 0
        if blank is not None:
            blank.mailbox.close()
        if not pid:
            sandbox = self._sandbox(kind)
            pid = self._fork(lambda: sandbox.run(message, fds))
        self._children[pid] = name
        if self._spec.volume is None:  # which has one writer at a time
            self._wanted = kind
            self._again = time.monotonic() + BREATH

    def _make_ahead(self) -> None:
        """What nobody has asked for yet, but will if they go on as they did."""
        if self._parent is not None:
            self._make_more(self._parent)
        kind = self._wanted
        if self._blank is None and kind is not None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sandbox = self._sandbox(kind)
            with theirs:
                self._blank = Blank(self._fork(lambda: sandbox.wait(theirs)), kind, ours)

    def _sandbox(self, kind: branches.Kind, *, movable: bool = False) -> Sandbox:
        return Sandbox(self._spec, self._movable if movable else self._filter, self._furnishing(kind))

    def _furnishing(self, kind: branches.Kind) -> Furnishing:
        """For a sandbox that does it itself. It is written down once for all of a kind."""
        if kind not in self._furnishings:
            if len(self._furnishings) >= branches.IDLE:
                self._furnishings.clear()
            self._furnishings[kind] = Furnishing(self._spec, self._hidden, *kind)
        return self._furnishings[kind]

    def _keep(self, names: set[str]) -> None:
        """For a server that has taken over from another: end all that it knows nothing of, and say what there is."""
        for branch in list(self._branches.values()):
            self._give_up(branch, "the server that wanted it has ended")
        for pid in [pid for pid, name in self._children.items() if name not in names]:
            os.kill(pid, signal.SIGKILL)
            while os.WIFSTOPPED(os.waitpid(pid, 0)[1]):
                pass
            del self._children[pid]
            if self._parent is not None and pid == self._parent.pid:
                self._end_parent()
        if self._parent is not None:
            self._discard_all(self._parent)
        if self._blank is not None:
            self._blank.mailbox.close()
            self._blank = None
        self._reap()
        self._send({"op": "kept", "ids": list(self._children.values())})

    def _multiply(self, control: socket.socket) -> None:
        """In a fork: be one like this."""
        _Zygote(self._spec, control, self._hidden)._serve()

    def _prepare(self, name: str, message: dict[str, Any], fds: list[int]) -> None:
        """Have the author's code loaded by a process that others are then forked from."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sandbox = self._sandbox(_kind(message), movable=True)
        with theirs:
            pid = os.fork()
            if pid == 0:
                sandbox.prepare(message, fds, theirs)
        self._children[pid] = name
        self._parent = Parent(pid, ours, _kind(message))

    def _branch(self, name: str, message: dict[str, Any], fds: list[int]) -> None:
        """Have a child of the parent's be what is asked for."""
        doors = 5 if message["network"] == "egress" else 4
        branch = Branch(name, Limits(**message["limits"]), fds[:4], fds[4:doors], fds[doors:])
        self._branches[name] = branch
        if self._parent is None:
            self._give_up(branch, "there is nothing to fork it from")
        else:
            self._parent.waiting.append(branch)
            self._give_out(self._parent)
            if self._parent.waiting:
                self._make_more(self._parent)
            else:
                self._again = time.monotonic() + BREATH

    def _make_more(self, parent: Parent) -> None:
        """Have the parent fork, and somebody come who builds for its child."""
        if not parent.wants_more:
            return
        try:
            newborn = Newborn(self._builders.come(parent.kind))
        except OSError as error:
            self._failed(parent, str(error))
            return
        assert newborn.builder is not None
        self._when_readable(newborn.builder.done, partial(self._built, parent, newborn))
        try:
            parent.fork(newborn)
        except OSError as error:
            self._discard(parent, newborn, str(error))

    def _built(self, parent: Parent, newborn: Newborn) -> None:
        """Its namespaces are furnished."""
        assert newborn.builder is not None
        self._selector.unregister(newborn.builder.done)
        parent.building.remove(newborn)
        try:
            newborn.built()
            if not parent.waiting:
                self._builders.leave(parent.kind, newborn.enter())
        except OSError as error:
            self._discard(parent, newborn, str(error))
            return
        parent.ready.append(newborn)
        parent.ahead = branches.AHEAD
        self._give_out(parent)
        self._make_more(parent)

    def _give_out(self, parent: Parent) -> None:
        """Let newborns become those that are asked for."""
        while parent.ready and (branch := parent.next_branch()) is not None:
            newborn = parent.ready.popleft()
            child, made_ahead = newborn.child, newborn.at_home
            assert child is not None
            try:
                builder = newborn.become(branch)
            except OSError as error:
                self._discard(parent, newborn, "")
                if made_ahead:  # somebody may have killed it since
                    parent.waiting.appendleft(branch)
                else:
                    self._give_up(branch, str(error))
                continue
            if builder is not None:
                self._builders.leave(parent.kind, builder)
            newborn.close()
            self._children[child.pid] = branch.id
            del self._branches[branch.id]
            branch.close()

    def _discard(self, parent: Parent, newborn: Newborn, why: str) -> None:
        """It is not to be. ``why``: whoever waits hears so; nobody does without."""
        for place in (parent.building, parent.ready):
            if newborn in place:
                place.remove(newborn)
        builder, newborn.builder = newborn.builder, None
        if builder is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(builder.done)
            builder.close()
        newborn.close()
        if why:
            self._failed(parent, why)

    def _discard_all(self, parent: Parent) -> None:
        parent.ahead = 0
        for newborn in parent.newborns:
            self._discard(parent, newborn, "")

    def _failed(self, parent: Parent, why: str) -> None:
        """One more could not be made. Nobody tries again before somebody asks."""
        parent.ahead = 0
        branch = parent.next_branch()
        if branch is not None:
            self._give_up(branch, why)
            self._make_more(parent)

    def _end_parent(self) -> None:
        """It is gone, and with it all that it was to fork."""
        parent, self._parent = self._parent, None
        assert parent is not None
        parent.channel.close()
        self._discard_all(parent)
        for branch in parent.waiting:
            self._give_up(branch, "the process that it was to be forked from has ended")

    def _give_up(self, branch: Branch, why: str) -> None:
        branch.give_up(why)
        if self._branches.pop(branch.id, None) is not None:
            self._send({"op": "exit", "id": branch.id, "code": -9})

    def _fork(self, run: Callable[[], None]) -> int:
        linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            run()
        linux.setns(self._own_pids, linux.CLONE_NEWPID)  # the next unshare is refused otherwise
        return pid

    def _reap(self) -> None:
        while self._children or self._blank is not None:
            pid, status = os.waitpid(-1, os.WNOHANG | WALL)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._stopped(pid, status)
                continue
            code = os.waitstatus_to_exitcode(status)
            if self._parent is not None and pid == self._parent.pid:
                self._end_parent()
            name = self._children.pop(pid, None)
            if name is not None:
                self._send({"op": "exit", "id": name, "code": code})
            else:
                self._lost(pid)

    def _lost(self, pid: int) -> None:
        """A builder has ended: as it should, or somebody has killed it at work. Or what was made ahead was killed."""
        self._builders.ending.discard(pid)
        if self._blank is not None and self._blank.pid == pid:
            self._blank.mailbox.close()
            self._blank = None
        parent = self._parent
        if parent is None:
            return
        for newborn in parent.newborns:
            if newborn.builder is not None and newborn.builder.pid == pid:
                self._discard(parent, newborn, "its builder was killed")
            elif newborn.child is not None and newborn.child.pid == pid:
                newborn.child = None
                self._discard(parent, newborn, "it was killed" if newborn in parent.building else "")

    def _stopped(self, pid: int, status: int) -> None:
        """Something that is being traced stopped: the parent, for having forked, or the newborn itself."""
        parent = self._parent
        if parent is None:
            os.kill(pid, signal.SIGKILL)  # born when its parent was ended
            return
        if pid != parent.pid:
            self._early.add(pid)
            return
        child = ptrace.forked(pid, status)
        if child is None:
            ptrace.carry_on(pid, status)
            return
        ptrace.release(pid)
        waited = child in self._early
        self._early.discard(child)
        newborn, parent.asked = parent.asked, None
        assert newborn is not None  # it is traced only while it is asked to fork one
        try:
            born = ptrace.Stopped(child, waited=waited)
            if newborn.builder is None:  # it is not wanted any more
                born.kill()
            else:
                parent.building.append(newborn)
                newborn.born(born)
        except OSError as error:
            self._discard(parent, newborn, str(error))
        self._make_more(parent)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)


if __name__ == "__main__":
    main()
