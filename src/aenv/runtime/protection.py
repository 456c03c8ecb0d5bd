"""Protect the runtime from being ended by an agent's processes, with signals or by using up memory.

The runtime is the first process of its process namespace: the kernel delivers a signal from inside of that namespace to
it only where it has a handler. So it has none, but for SIGCHLD. When memory runs out, the kernel picks a victim by size
and by ``oom_score_adj``; every process that is started here begins with the highest, so the runtime is the last.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

_MOST = 1000
_KEPT = {signal.SIGCHLD, signal.SIGPIPE, signal.SIGKILL, signal.SIGSTOP}
_OF_THE_THREAD = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
}
"""Signals that a process causes itself; native code may handle them."""
_TO_END = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_FROM_INSIDE = signal.valid_signals() - _KEPT - _OF_THE_THREAD


def ignore_signals_from_inside() -> None:
    """Remove every handler that Python or the environment's code has set. Call it when that code is loaded.

    Not SIG_IGN: programs that tools start would inherit that, and could not be ended by ``kill`` any more.
    """
    for number in _FROM_INSIDE:
        handler = signal.getsignal(number)
        if callable(handler) or (handler is None and number in _TO_END):
            signal.signal(number, signal.SIG_DFL)


class OomVictims:
    """Makes the kernel kill the processes that this one starts before this one, when memory runs out."""

    def __init__(self) -> None:
        self._file = -1
        self._own = b""
        self._starting = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start, in the process to protect, before it is made undumpable: it then loses access to its files in
        /proc.
        """
        for before in self.descriptors():  # in a fork
            os.close(before)
        try:
            self._file = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            own = int(os.read(self._file, 16))
        except (OSError, ValueError):
            return
        self._own = b"%d" % own if own < _MOST else b""

    def descriptors(self) -> list[int]:
        """Return the descriptors that `begin` opened."""
        return [self._file] if self._file >= 0 else []

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Processes started within ``with`` are the first to be killed."""
        if not self._own:
            yield
            return
        me = os.getpid()
        self._count(1)
        try:
            yield
        finally:
            if os.getpid() == me:  # and not in a fork
                self._count(-1)

    def _count(self, change: int) -> None:
        """Count processes that are being started. They inherit the score, so this process has a victim's score
        meanwhile.
        """
        with self._lock:
            before = self._starting
            self._starting += change
            if 0 in (before, self._starting):
                with contextlib.suppress(OSError):
                    os.pwrite(self._file, b"%d" % _MOST if self._starting else self._own, 0)
