"""The call that a tool is serving: report progress, and notice that the caller has gone away."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from aenv.tracing.context import SpanContext, current

if TYPE_CHECKING:
    from aenv.authoring.agent_time import AgentTime

Progress = Callable[[float, float | None, str | None], None]


class Call:
    """A call in progress. All of it may be used from any thread, since sync tools run in threads."""

    __slots__ = ("_progress", "agent_time", "cancelled", "deadline", "name", "trace")

    def __init__(self, name: str = "", progress: Progress | None = None, trace: SpanContext | None = None) -> None:
        self.name = name
        self.trace = trace
        """Trace span of the call, and parent span of the calls that it makes to other environments."""
        self.cancelled = False
        """True once the caller has disconnected or given up. A thread cannot be stopped from outside, so a long sync
        tool should check this now and then and return."""
        self.deadline: float | None = None
        """Monotonic time by which the call has to answer, if that is known."""
        self.agent_time: AgentTime | None = None
        """Time that agent code has used, of a reward with a time limit."""
        self._progress = progress

    @property
    def seconds_left(self) -> float | None:
        """Seconds in which a reward has to answer; None for other calls, and where the caller did not say.

        Use it as the timeout of a program with agent code that the reward starts without `run_python`.
        """
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress to the caller. Does nothing if the caller did not ask for progress.

        Args:
            done: Amount of work that is done.
            total: Total amount of work, if known.
            message: Short description for people.
        """
        if self._progress is not None and not self.cancelled:
            self._progress(done, total, message)


_serving: ContextVar[Call | None] = ContextVar("aenv_call", default=None)


def current_call() -> Call:
    """Return the call that is being served; outside of a call, as in a unit test, return a call without a listener.

    Example:
        ```python
        @register_tool
        def index(files: list[str]) -> int:
            call = current_call()
            for number, file in enumerate(files):
                if call.cancelled:
                    break
                add_to_index(file)
                call.progress(number + 1, len(files))
            return len(files)
        ```
    """
    return _serving.get() or Call()


def served_call() -> Call | None:
    """Return the call that this context serves, if there is one."""
    return _serving.get()


def serve(call: Call) -> None:
    """Make ``call`` the current call of this context."""
    _serving.set(call)
    if call.trace is not None:
        current.set(call.trace)
