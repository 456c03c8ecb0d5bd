"""Who may go next when the platform is full.

A create waits until there is a place for it. Who is next is decided by account, then by experiment, then by owner,
then by arrival. The account is that of the token; experiment and owner are words of the caller's own, so they divide
only what their account is given. Each account is given as many places as any other that waits, and so is each
experiment within it, whatever it has in the queue. What is asked for
in one request is let in together or not at all, so that two groups cannot each hold half of what they need; until it
fits, nobody else is let in before it.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter as Tally
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from aenv.errors import Overloaded, QuotaExceeded
from aenv.platform.operations.metrics import Metrics

RETRY_LEAST, RETRY_MOST, RETRY_UNKNOWN = 1, 30, 5
"""Seconds that who was not let in is told to stay away."""
OTHERS_SECONDS = 0.05
"""Between two looks at whether another platform on this machine has left a place."""
LONGEST = 3600.0
"""Seconds that anybody may wait."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much there is room for; 0: no limit."""

    alive: int = 0
    """Instances that are there, those that are being made among them."""
    creating: int = 0
    """Instances that are being made."""
    wait: float = 60.0
    """Seconds in the queue, for who does not say how long."""


class AdmissionTicket:
    """The wish for so many places, by one request."""

    def __init__(self, admission: Admission, experiment: str, owner: str, count: int, account: str = "") -> None:
        self.account = account
        self.experiment = experiment
        self.owner = owner
        self.count = count
        self.since = time.monotonic()
        self.admitted = False
        self._admission = admission
        self._came: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def path(self) -> tuple[str, str, str]:
        """The line that it stands in, from the outermost."""
        return self.account, self.experiment, self.owner

    @property
    def waits(self) -> bool:
        """Whether it is in the queue."""
        return self._came is not None and not self._came.done()

    async def come(self) -> None:
        """Wait for it.

        Raises:
            Overloaded: it took too long.
        """
        if self._came is not None:
            await asyncio.shield(self._came)

    def leave(self) -> None:
        """One place less is used, or wanted."""
        self._admission.leave(self)

    def enqueue(self, seconds: float) -> None:
        """Wait for so long."""
        loop = asyncio.get_running_loop()
        self._came = loop.create_future()
        self._came.add_done_callback(lambda future: future.cancelled() or future.exception())  # they may be gone
        self._timer = loop.call_later(seconds, self._admission.expire, self, seconds)

    def settle(self, error: Exception | None = None) -> None:
        """It is out of the queue."""
        self.admitted = error is None
        if self._timer is not None:
            self._timer.cancel()
        if self._came is not None and not self._came.done():
            self._came.set_exception(error) if error else self._came.set_result(None)


@dataclass(slots=True)
class _Line:
    """Those that wait of one kind, and how many places have been given to them."""

    given: float = 0.0
    turns: deque[AdmissionTicket] = field(default_factory=deque)
    lines: dict[str, _Line] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not self.turns and not self.lines

    def line(self, name: str) -> _Line:
        """One of those below. Who comes anew begins where the others are: what was not used is not saved up."""
        if name not in self.lines:
            self.lines[name] = _Line(min((line.given for line in self.lines.values()), default=0.0))
        return self.lines[name]

    def next(self) -> _Line:
        """The one that has been given least; of several, the one that has waited longest."""
        return min(self.lines.values(), key=lambda line: line.given)

    def gave(self, name: str, count: int) -> None:
        """So many to one of those below; it stands behind the others now."""
        line = self.lines.pop(name)
        if not line.empty:
            line.given += count
            self.lines[name] = line


class Machine(Protocol):
    """A machine that several platforms share."""

    @property
    def others(self) -> int:
        """Instances of the other platforms."""

    def instances(self, count: int) -> None:
        """Say how many this platform has, or is about to have."""


class Admission:
    """Lets creates in, as far as there is room."""

    def __init__(
        self, capacity: Capacity | None = None, metrics: Metrics | None = None, machine: Machine | None = None
    ) -> None:
        """``machine``: what other platforms on this machine have in use of the same capacity."""
        self.capacity = capacity or Capacity()
        self._machine = machine
        self._again: asyncio.TimerHandle | None = None
        self._metrics = metrics or Metrics()
        self._alive = 0
        self._creating = 0
        self._makers: deque[asyncio.Future[None]] = deque()
        self._queue = _Line()
        self._waiting: set[AdmissionTicket] = set()
        self._pace = 0.0
        self._last = 0.0
        self._metrics.gauge("queue_length", self._lengths)
        self._metrics.gauge("places", self._places)

    def ask(
        self, experiment: str, owner: str, count: int, seconds: float | None = None, *, account: str = ""
    ) -> AdmissionTicket:
        """Let so many in, or have them wait for at most ``seconds``.

        Raises:
            QuotaExceeded: they would not fit if the platform were empty.
        """
        turn = AdmissionTicket(self, experiment, owner, count, account)
        most = self.capacity.alive
        if most and count > most:
            raise QuotaExceeded(
                f"this platform has room for {most} instances, and {count} were asked for at once",
                details={"limit": most, "hint": f"Ask for at most {most} in one request."},
            )
        if not self._waiting and self._fits(count):
            self._admit(turn)
            return turn
        self._waiting.add(turn)
        line = self._queue
        for name in turn.path:
            line = line.line(name)
        line.turns.append(turn)
        turn.enqueue(min(self.capacity.wait if seconds is None else seconds, LONGEST))
        self._look_again()
        return turn

    def count_in(self, experiment: str, owner: str) -> AdmissionTicket:
        """A place for an instance that is there already, whether there is room or not."""
        turn = AdmissionTicket(self, experiment, owner, 1)
        self._admit(turn)
        return turn

    def why(self, turn: AdmissionTicket) -> str:
        """What one waits for, for people."""
        most = self.capacity.alive
        return f"the platform is full ({self._in_use} of {most} instances), and {self._ahead(turn)} wait before it"

    def leave(self, turn: AdmissionTicket) -> None:
        """One of its places is free again, or is not wanted any more."""
        if turn.count == 0:
            return
        turn.count -= 1
        if turn.admitted:
            self._alive -= 1
            self._announce(self._alive)
        elif turn.count == 0 and turn in self._waiting:
            self._out(turn)
            self._metrics.count("queue_total", outcome="left", experiment=turn.experiment)
        self._let_in()

    def expire(self, turn: AdmissionTicket, seconds: float) -> None:
        """It has waited for too long."""
        if turn not in self._waiting:
            return
        ahead = self._ahead(turn)
        after = min(RETRY_MOST, max(RETRY_LEAST, math.ceil(self._pace * (ahead + 1)))) if self._pace else RETRY_UNKNOWN
        self._out(turn)
        self._metrics.count("queue_total", outcome="expired", experiment=turn.experiment)
        error = Overloaded(
            f"no place came free within {seconds:g} s: the platform runs {self._in_use} of {self.capacity.alive} "
            f"instances, and {ahead} wait before this",
            details={"retry_after": after, "hint": "End instances that are not needed, or wait longer."},
        )
        turn.settle(error)
        self._let_in()

    # --- how many are made at once

    async def begin(self) -> None:
        """Wait until one more may be made; then `made` must follow. First come, first served: it is never long."""
        most = self.capacity.creating
        if not most or (self._creating < most and not self._makers):
            self._creating += 1
            return
        maker = asyncio.get_running_loop().create_future()
        self._makers.append(maker)
        try:
            await maker
        except asyncio.CancelledError:
            if maker.done() and not maker.cancelled():
                self.made()
            else:
                self._makers.remove(maker)
            raise

    def made(self) -> None:
        """One is made, or failed to be."""
        self._creating -= 1
        while self._makers and self._creating < self.capacity.creating:
            maker = self._makers.popleft()
            if not maker.done():
                self._creating += 1
                maker.set_result(None)

    # --- inside

    def _fits(self, count: int) -> bool:
        if not self.capacity.alive:
            return True
        self._announce(self._alive + count)  # before the look at the others: so two never take the same place
        if self._in_use + count <= self.capacity.alive:
            return True
        self._announce(self._alive)
        return False

    @property
    def _in_use(self) -> int:
        """Of the capacity, by all platforms that share it."""
        return self._alive + (self._machine.others if self._machine is not None else 0)

    def _announce(self, count: int) -> None:
        if self._machine is not None:
            self._machine.instances(count)

    def _look_again(self) -> None:
        """Other platforms do not say when they leave a place, so it is looked for while somebody waits."""
        if self._machine is not None and self._waiting and self._again is None:
            pause = OTHERS_SECONDS * random.uniform(0.5, 1.5)  # two that gave way to each other must not do so for ever
            self._again = asyncio.get_running_loop().call_later(pause, self._looked)

    def _looked(self) -> None:
        self._again = None
        self._let_in()
        self._look_again()

    def _admit(self, turn: AdmissionTicket) -> None:
        self._alive += turn.count
        self._announce(self._alive)
        now = time.monotonic()
        if self._last and turn.waits:
            self._pace = 0.8 * self._pace + 0.2 * (now - self._last) / turn.count
        self._last = now
        if turn.waits:
            self._metrics.observe("queue_wait_ms", (now - turn.since) * 1000)
            self._metrics.count("queue_total", outcome="admitted", experiment=turn.experiment)
        turn.settle()

    def _let_in(self) -> None:
        while self._waiting:
            line = self._queue
            while not line.turns:
                line = line.next()
            turn = line.turns[0]
            if not self._fits(turn.count):
                return
            line.turns.popleft()
            self._waiting.discard(turn)
            for name, above in reversed(self._lines(turn)):
                above.gave(name, turn.count)
            self._admit(turn)

    def _out(self, turn: AdmissionTicket) -> None:
        self._waiting.discard(turn)
        lines = self._lines(turn)
        name, above = lines[-1]
        above.lines[name].turns.remove(turn)
        for name, above in reversed(lines):
            if above.lines[name].empty:
                del above.lines[name]

    def _lines(self, turn: AdmissionTicket) -> list[tuple[str, _Line]]:
        """The lines above the one that it stands in, from the outermost, each with the name of the next."""
        found, line = [], self._queue
        for name in turn.path:
            found.append((name, line))
            line = line.lines[name]
        return found

    def _ahead(self, turn: AdmissionTicket) -> int:
        """Instances of those that came before it; some may be let in after it all the same."""
        return sum(other.count for other in self._waiting if other.since < turn.since)

    def _lengths(self) -> list[tuple[dict[str, str], float]]:
        tally: Tally[str] = Tally()
        for turn in self._waiting:
            tally[turn.experiment] += turn.count
        return [({"experiment": name}, float(count)) for name, count in tally.items()]

    def _places(self) -> list[tuple[dict[str, str], float]]:
        facts = {"used": self._alive, "creating": self._creating, "limit": self.capacity.alive}
        return [({"state": name}, float(count)) for name, count in facts.items()]
