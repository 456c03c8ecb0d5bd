"""The zygote of confined sandboxes: like `aenv.isolation.forking.zygote`, where the host allows no namespaces.

It has no rights either: where the server is root, it becomes a user of its own first. What keeps its sandboxes from it,
from the server and from each other is Landlock (files, signals, tracing), the system-call filter (everything else) and
unguessable names. docs/design/sandbox.md lists what this cannot hide.

``python -m aenv.isolation.confined.confined_zygote`` starts two processes: the zygote, and one that removes its files
when it and all of its sandboxes have ended.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from aenv.isolation.confined.confined_sandbox import ConfinedSandbox, open_places
from aenv.isolation.confined.instance_folders import InstanceFolder, SharedFolder
from aenv.isolation.confined.instance_leader import lead
from aenv.isolation.files import private_folder, rootfs
from aenv.isolation.files.trees import remove_tree
from aenv.isolation.forking.preloaded import Kind
from aenv.isolation.forking.zygote import Zygote
from aenv.isolation.forking.zygote_spec import MESSAGE, ZygoteSpec
from aenv.isolation.kernel import linux, seccomp
from aenv.isolation.limits import host_users


def main() -> None:
    """Run the module: its argument is the descriptor of the control socket."""
    linux.die_with_parent()
    with contextlib.suppress(OSError):
        os.setsid()
    control = socket.socket(fileno=int(sys.argv[1]))
    message = control.recv(MESSAGE)
    if not message:
        sys.exit(0)  # the server has ended
    spec = ZygoteSpec.read(message)
    is_root = os.geteuid() == 0
    interpreter = rootfs.interpreter_paths()  # here: another user may not even see that they exist
    try:
        private_folder.load(spec.project if spec.files is None else None)
        user = host_users.claim() if is_root else None
        shared = SharedFolder.create(spec.project, spec.files, for_another_user=is_root)
    except OSError as error:
        code = {"code": "load"} if isinstance(error, private_folder.TooLargeError) else {}
        control.send(json.dumps({"op": "failed", "error": str(error), **code}).encode())
        sys.exit(1)
    linux.adopt_orphans()
    if os.fork():
        control.close()
        _remove_at_the_end(shared)
    linux.die_with_parent()
    if user is not None:
        linux.drop_bounding_set()
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        linux.die_with_parent()  # once more: becoming another user has cleared it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    linux.no_new_privileges()
    linux.drop_capabilities()
    linux.adopt_orphans()
    try:
        zygote = _ConfinedZygote(spec, control, shared, interpreter, shared_user=user is None)
    except OSError as error:
        control.send(json.dumps({"op": "failed", "error": str(error)}).encode())
        os._exit(1)
    zygote.run()


def _remove_at_the_end(shared: SharedFolder) -> None:
    """Wait for the zygote and for all that it has forked, then remove their files. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    linux.die_with_parent(0)  # the zygote ends when the server does, as its control socket is closed
    code = 0
    while True:
        try:
            _, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        code = code or (os.waitstatus_to_exitcode(status) and 1)
    remove_tree(shared.path)
    os._exit(code)


class _ConfinedZygote(Zygote):
    """The loop that receives requests and forks, without namespaces."""

    def __init__(
        self,
        spec: ZygoteSpec,
        control: socket.socket,
        shared: SharedFolder,
        interpreter: list[str],
        *,
        shared_user: bool,
    ) -> None:
        super().__init__(spec, control, [])
        self._shared = shared
        self._places = open_places(spec, shared, interpreter)
        self._filter = seccomp.confined(network=spec.host_network, shared_user=shared_user)
        self._leashes: dict[int, int] = {}
        """Descriptors to close to end a sandbox, by the process id of its leader."""
        self._folder = InstanceFolder("")

    def _sandbox(self, kind: Kind) -> ConfinedSandbox:
        self._folder = InstanceFolder(f"{self._shared.instances}/{secrets.token_hex(16)}")
        return ConfinedSandbox(self._spec, self._filter, self._shared, self._folder, self._places)

    def _fork(self, run: Callable[[], None]) -> int:
        """Fork the leader of a sandbox."""
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
            if pid == 0:
                os.close(ours)
                lead(run, theirs, self._folder.path)
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._leashes[pid] = ours
        return pid

    def _end(self, pid: int) -> None:
        leash = self._leashes.pop(pid, None)
        if leash is not None:
            os.close(leash)

    def _ended(self, pid: int, code: int) -> None:
        killed = pid in self._leashes and code == -signal.SIGKILL  # though it was not told to end
        orphan = pid not in self._leashes and pid not in self._children
        self._end(pid)
        super()._ended(pid, code)
        if killed or orphan:
            self._end_strangers()

    def _end_strangers(self) -> None:
        """End orphans of a leader that was killed: nothing else makes them children of this process. Their own children
        become such orphans in turn, and each of their ends leads here again.
        """
        known = {*self._children, *self._leashes}
        me = os.getpid()
        with open(f"/proc/{me}/task/{me}/children") as file:
            found = {int(word) for word in file.read().split()} - known
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _prepare(self, name: str, message: dict[str, Any], fds: list[int]) -> None:
        raise OSError(errno.ENOSYS, "confined sandboxes load their code themselves")

    def _ready(self) -> dict[str, Any]:
        return {**super()._ready(), "folder": self._shared.path}


if __name__ == "__main__":
    main()
