"""Waits for processes that nobody else will.

The first process of a sandbox becomes the parent of every process whose own parent has ended. One that is not waited
for stays as a zombie and counts against the limit. But a child that the author's code started is that code's to wait
for: taking its exit code away would break ``subprocess``. So what Python starts is remembered, and what turns up
beside it is an orphan. The kernel hands orphans to the first thread and keeps the children of other threads apart,
which leaves nothing to guess about programs that native code starts in a thread.
"""

from __future__ import annotations

import _posixsubprocess
import asyncio
import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from aenv.runtime.protection import OomVictims

PAUSE = 0.5
"""Seconds. Waiting for orphans at once would keep a fork bomb alive, and this process busy with nothing else."""
Start = Callable[..., Any]


class Orphans:
    """Call `watch` before the author's code runs, and `reap_from_now_on` in the loop that then does."""

    def __init__(self) -> None:
        self.victims = OomVictims()
        self._own: set[int] = set()
        self._children = ""
        self._soon: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Remember every process that is started from Python."""
        for module, names in (
            (os, ("fork", "forkpty", "posix_spawn", "posix_spawnp")),
            (subprocess, ("_fork_exec",)),
            (_posixsubprocess, ("fork_exec",)),
        ):
            for name in names:
                start = getattr(module, name, None)
                if start is not None:
                    setattr(module, name, self._remembering(start))

    def _remembering(self, start: Start) -> Start:
        @functools.wraps(start)
        def remembered(*arguments: Any, **options: Any) -> Any:
            with self.victims.born():
                made = start(*arguments, **options)
            pid = made[0] if isinstance(made, tuple) else made  # forkpty gives a descriptor as well
            if pid:
                self._own.add(pid)
            return made

        return remembered

    def reap_from_now_on(self) -> None:
        """Have it done, in the first thread, a moment after a child has ended."""
        loop = asyncio.get_running_loop()
        me = os.getpid()
        self._children = f"/proc/{me}/task/{me}/children"

        def heard() -> None:
            if self._soon is None:
                self._soon = loop.call_later(PAUSE, self._reap)

        loop.add_signal_handler(signal.SIGCHLD, heard)
        heard()

    def _reap(self) -> None:
        self._soon = None
        for pid in list(self._own):
            try:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._own.discard(pid)  # somebody has waited for it; the number may come again
        try:
            with open(self._children) as file:
                children = [int(pid) for pid in file.read().split()]
        except OSError:
            return  # a kernel that does not tell
        for pid in children:
            if pid not in self._own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
