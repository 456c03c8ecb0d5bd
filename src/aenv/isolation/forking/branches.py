"""The forkable instances and the checkpoints of a zygote."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any, Protocol

from aenv.isolation.forking.doors import Branch, BranchInTheMaking, Door
from aenv.isolation.forking.preloaded import ForkRequest, Kind, PreloadedParent, same_cpu
from aenv.isolation.kernel import ptrace
from aenv.isolation.kernel.syscall_plan import SyscallPlan


class Plans(Protocol):
    """Returns the plan that isolates a sandbox of one kind, and whether that opens an egress listener."""

    def __call__(self, kind: Kind, *, forkable: bool = False) -> tuple[SyscallPlan, bool]: ...


class Branches:
    """Makes, holds, forks and ends them. An instance and its door end together."""

    def __init__(self, plans: Plans, flags: int, send: Callable[[dict[str, Any]], None]) -> None:
        self._plans = plans
        self._flags = flags
        self._send = send
        self._by_name: dict[str, Branch] = {}
        self._by_pid: dict[int, Branch] = {}
        """By the process id of the instance, and by that of its door."""
        self._codes: dict[str, int] = {}
        """Exit codes of instances whose doors have not ended yet."""

    def make(self, parent: PreloadedParent, request: ForkRequest) -> int:
        """Make the requested instance behind a new door; return its process id."""
        with parent.fork_door() as (first, pinned):
            return self._make(Door(first), parent, request, pinned).pid

    def fork(self, source: str, request: ForkRequest, *, stay: bool) -> int:
        """Fork a held instance or a checkpoint; return the process id of the new one. ``stay``: as a checkpoint.

        Raises:
            OSError: it cannot be forked, or a step failed.
        """
        branch = self._by_name.get(source)
        if branch is None or branch.state is None:
            raise ProcessLookupError(f"{source} is not there, or is not held")
        with branch.parent.kept_away():
            door = branch.door.fork()
            with same_cpu(door.pid) as pinned:
                return self._make(door, branch.parent, request, pinned, source=branch, stay=stay).pid

    def _make(
        self,
        door: Door,
        parent: PreloadedParent,
        request: ForkRequest,
        pinned: list[int],
        *,
        source: Branch | None = None,
        stay: bool = False,
    ) -> Branch:
        making = BranchInTheMaking(door, parent)
        failed = True
        try:
            plan, has_egress = self._plans(parent.kind, forkable=True)
            state = source.state if source is not None else None
            making.isolate(plan, self._flags, request, has_egress=has_egress, state=state)
            pinned.append(making.pid)  # as its door is
            if source is not None:
                making.copy_files(source.layer)
            branch = making.park(request) if stay else making.run(request)
            failed = False
        finally:
            making.close(failed=failed)
        self._by_name[branch.id] = self._by_pid[branch.pid] = self._by_pid[door.pid] = branch
        return branch

    def hold(self, name: str) -> None:
        """Stop an instance that waits to be forked. Raises OSError if that cannot be done."""
        if name not in self._by_name:
            raise ProcessLookupError(f"{name} is not forkable, or has ended")
        self._by_name[name].hold()

    def release(self, name: str) -> None:
        """Let a held instance go on."""
        if name in self._by_name:
            self._by_name[name].release()

    def release_all(self) -> None:
        """Let all held instances go on."""
        for branch in self._by_name.values():
            branch.release()

    def stopped(self, pid: int, status: int) -> bool:
        """Let an instance go on that a signal has stopped; return False if the process is not one of these."""
        branch = self._by_pid.get(pid)
        if branch is not None and branch.pid == pid and branch.channel is not None and branch.state is None:
            with contextlib.suppress(OSError):  # it was killed
                ptrace.pass_on(pid, status)
        return branch is not None

    def ended(self, pid: int, code: int) -> tuple[int, int] | None:
        """Note the end of a process. Return the process and code to report; None: the other of the two ends first."""
        branch = self._by_pid.pop(pid, None)
        if branch is None:
            return pid, code
        self._by_name.pop(branch.id, None)
        if pid == branch.pid:
            self._codes[branch.id] = code
        other = branch.door.pid if pid == branch.pid else branch.pid
        if other in self._by_pid:
            branch.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)
            return None
        return branch.pid, self._codes.pop(branch.id, code)

    def forget(self, pid: int) -> None:
        """Forget an instance that was killed and reaped, and end its door."""
        branch = self._by_pid.pop(pid, None)
        if branch is not None:
            self._by_name.pop(branch.id, None)
            self._by_pid.pop(branch.door.pid, None)
            branch.close()
