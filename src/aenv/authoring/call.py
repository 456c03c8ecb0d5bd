"""The call that a tool is serving: report progress, notice that nobody waits any more."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from aenv.tracing.context import SpanContext, current

Progress = Callable[[float, float | None, str | None], None]


class Call:
    """One call under way. Sync tools run in threads, so everything here may be used from any thread."""

    __slots__ = ("_progress", "cancelled", "name", "trace")

    def __init__(self, name: str = "", progress: Progress | None = None, trace: SpanContext | None = None) -> None:
        self.name = name
        self.trace = trace
        """What it is a part of, and so are the calls to other environments that it makes."""
        self.cancelled = False
        """The caller went away or gave up. A thread cannot be stopped from outside: a long sync tool looks
        here now and then and returns."""
        self._progress = progress

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the caller how far the work is; nothing happens when it did not ask to be told."""
        if self._progress is not None and not self.cancelled:
            self._progress(done, total, message)


_serving: ContextVar[Call | None] = ContextVar("aenv_call", default=None)


def current_call() -> Call:
    """The call being served. Outside of one, in a unit test say, a call that nobody listens to."""
    return _serving.get() or Call()


def serve(call: Call) -> None:
    """Make ``call`` the current one, in this context."""
    _serving.set(call)
    if call.trace is not None:
        current.set(call.trace)
