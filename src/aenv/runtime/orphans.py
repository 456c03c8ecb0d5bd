"""Reap orphaned processes inside a sandbox.

The first process of a sandbox becomes the parent of every process whose own parent has ended. One that is not reaped
stays as a zombie and counts against the limit of processes. But a child that the environment's code started is that
code's to wait for: taking its exit code away would break ``subprocess``. So what Python starts is recorded, and any
other child is an orphan. The kernel gives orphans to the first thread and keeps the children of other threads apart, so
programs that native code starts in a thread are not mistaken for orphans.
"""

from __future__ import annotations

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
"""Seconds between a child's end and reaping. Reaping at once would keep a fork bomb alive, and this process busy."""
Start = Callable[..., Any]


class Orphans:
    """Reaps orphans, and leaves the environment's own child processes to its code.

    Call `watch` before that code runs, and `reap_from_now_on` in the event loop that serves it.

    ``plain``: replace no private function of Python, see `cpython_internals`. Programs that ``subprocess`` starts are
    not recorded then, so orphans cannot be told from them, and are not reaped.
    """

    def __init__(self, *, plain: bool = False) -> None:
        self.victims = OomVictims()
        self._plain = plain
        self._own: set[int] = set()
        self._children = ""
        self._soon: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Record every process that is started from Python."""
        self._replace(os, "fork", "forkpty", "posix_spawn", "posix_spawnp")
        if not self._plain:
            import _posixsubprocess

            self._replace(subprocess, "_fork_exec")
            self._replace(_posixsubprocess, "fork_exec")

    def _replace(self, module: Any, *names: str) -> None:
        for name in names:
            start = getattr(module, name, None)
            if start is not None:
                setattr(module, name, self._recording(start))

    def _recording(self, start: Start) -> Start:
        @functools.wraps(start)
        def recorded(*arguments: Any, **options: Any) -> Any:
            with self.victims.starting():
                made = start(*arguments, **options)
            pid = made[0] if isinstance(made, tuple) else made  # forkpty returns a descriptor as well
            if pid:
                self._own.add(pid)
            return made

        return recorded

    def reap_from_now_on(self) -> None:
        """Reap orphans in the first thread, `PAUSE` seconds after a child has ended."""
        if self._plain:
            return
        loop = asyncio.get_running_loop()
        me = os.getpid()
        self._children = f"/proc/{me}/task/{me}/children"

        def on_child_ended() -> None:
            if self._soon is None:
                self._soon = loop.call_later(PAUSE, self._reap)

        loop.add_signal_handler(signal.SIGCHLD, on_child_ended)
        on_child_ended()

    def begin_in_fork(self) -> None:
        """Start over in a fork, which has no children."""
        self._own.clear()
        self._soon = None
        self.reap_from_now_on()

    def reap_now(self) -> None:
        """Reap orphans that have ended, without waiting."""
        if self._children:
            if self._soon is not None:
                self._soon.cancel()
            self._reap()

    def _reap(self) -> None:
        self._soon = None
        for pid in list(self._own):
            try:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._own.discard(pid)  # it was waited for, and its number may be used again
        try:
            with open(self._children) as file:
                children = [int(pid) for pid in file.read().split()]
        except OSError:
            return  # a kernel without CONFIG_PROC_CHILDREN
        for pid in children:
            if pid not in self._own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
