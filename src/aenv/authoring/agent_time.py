"""Time that agent code uses while a reward is computed.

An agent must not make its reward absent by using up the time in which the reward has to answer. `run_python` measures
how long agent code runs; the runtime asks when the time is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from aenv.authoring.call import served_call
from aenv.errors import StateDestroyed


class AgentTime:
    """Seconds that agent code has run within one reward; runs at the same time count once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._since = 0.0
        self._spent = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count the block as a run of agent code. May be entered from several threads."""
        with self._lock:
            if self._running == 0:
                self._since = time.monotonic()
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    self._spent += time.monotonic() - self._since

    def is_half_of(self, seconds: float) -> bool:
        """Return whether agent code has run for at least half of the seconds.

        Half decides whose fault a late reward is: the reward's own code runs in the same seconds, so agent code that
        is to blame need not have had all of them.
        """
        with self._lock:
            running = time.monotonic() - self._since if self._running else 0.0
            return self._spent + running >= seconds / 2


_under_way: set[AgentTime] = set()
"""Rewards that are being computed: threads that the author's code started have no current call."""


@contextmanager
def reward_under_way(spent: AgentTime) -> Iterator[None]:
    """Count agent code that runs in the block, in whichever thread."""
    _under_way.add(spent)
    try:
        yield
    finally:
        _under_way.discard(spent)


@contextmanager
def agent_code() -> Iterator[None]:
    """Count the block as agent code, for the reward that runs it if there is one.

    Raises:
        StateDestroyed: the time of that reward is over already.
    """
    call = served_call()
    if call is not None and call.agent_time is not None and call.cancelled:
        raise StateDestroyed("the time of the reward is over")
    charged = list(_under_way) if call is None else [call.agent_time] if call.agent_time is not None else []
    with ExitStack() as stack:
        for spent in charged:
            stack.enter_context(spent.measured())
        yield
