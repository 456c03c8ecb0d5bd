"""Admission control: a fair queue for creates when the platform is at capacity.

A create waits until capacity is free for it. The queue is fair by account, then experiment, then owner, then by
arrival.
The account is that of the token. Experiment and owner are chosen by the caller, so they divide only their account's
share. Each waiting account is admitted as many instances as any other, and so is each experiment within it, whatever
its number of requests.

The instances of one request are admitted together or not at all, so that two groups cannot each hold half of what they
need. Until the request at the head of the queue fits, no other is admitted before it.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter as Tally
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Protocol

from aenv.errors import CapacityExhausted, Overloaded, QuotaExceeded
from aenv.platform.instances.machine_capacity import MachineBound
from aenv.platform.operations.metrics import Metrics

RETRY_MIN, RETRY_MAX, RETRY_UNKNOWN = 1, 30, 5
"""Bounds of ``retry_after`` in seconds, and its value while the admission rate is unknown."""
RECHECK_SECONDS = 0.05
"""Interval between two checks whether another platform on this machine has released capacity."""
MAX_WAIT_SECONDS = 3600.0
"""Upper bound of any queue timeout."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Concurrency limits of a platform; 0: unlimited."""

    alive: int = 0
    """Instances that are running or being created."""
    creating: int = 0
    """Instances that are being created."""
    wait: float = 60.0
    """Default queue timeout in seconds."""
    longest_wait: float = MAX_WAIT_SECONDS
    """Upper bound in seconds of the queue timeout that a user may ask for; services wait as long as they need."""
    resource: str = ""
    """Resource of the machine that ``alive`` follows from; empty if an administrator chose it."""

    def bounded_by(self, bound: MachineBound | None) -> Capacity:
        """Return this capacity, with that of the machine where no number was chosen."""
        if self.alive or bound is None:
            return self
        return replace(self, alive=bound.instances, resource=bound.resource)


class AdmissionTicket:
    """Capacity for ``count`` instances of one request, waiting or admitted."""

    def __init__(self, admission: Admission, experiment: str, owner: str, count: int, account: str = "") -> None:
        self.account = account
        self.experiment = experiment
        self.owner = owner
        self.count = count
        self.since = time.monotonic()
        self.admitted = False
        self._admission = admission
        self._outcome: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def path(self) -> tuple[str, str, str]:
        """Account, experiment and owner: the path to its queue."""
        return self.account, self.experiment, self.owner

    @property
    def waiting(self) -> bool:
        """True while it is in the queue."""
        return self._outcome is not None and not self._outcome.done()

    async def wait(self) -> None:
        """Wait for admission.

        Raises:
            Overloaded: the queue timeout has passed.
        """
        if self._outcome is not None:
            await asyncio.shield(self._outcome)

    def release(self) -> None:
        """Release the capacity of one instance, or withdraw it from the queue."""
        self._admission.release(self)

    def enqueue(self, seconds: float) -> None:
        """Start the queue timeout."""
        loop = asyncio.get_running_loop()
        self._outcome = loop.create_future()
        # Retrieve the error: the waiter may have been cancelled.
        self._outcome.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._timer = loop.call_later(seconds, self._admission.expire, self, seconds)

    def resolve(self, error: Exception | None = None) -> None:
        """Leave the queue: admitted, or refused with ``error``."""
        self.admitted = error is None
        if self._timer is not None:
            self._timer.cancel()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(error) if error else self._outcome.set_result(None)


@dataclass(slots=True)
class _Queue:
    """The waiting tickets of one account, experiment or owner, and how many instances it has been admitted."""

    admitted: float = 0.0
    tickets: deque[AdmissionTicket] = field(default_factory=deque)
    children: dict[str, _Queue] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.tickets and not self.children

    def child(self, name: str) -> _Queue:
        """Return the queue of that name. A new one starts level with the others, so unused turns are not saved up."""
        if name not in self.children:
            self.children[name] = _Queue(min((queue.admitted for queue in self.children.values()), default=0.0))
        return self.children[name]

    def next_child(self) -> _Queue:
        """Return the queue that has been admitted least; of several, the one that has waited longest."""
        return min(self.children.values(), key=lambda queue: queue.admitted)

    def charge(self, name: str, count: int) -> None:
        """Charge ``count`` admitted instances to a child, and move it behind the others."""
        queue = self.children.pop(name)
        if not queue.is_empty:
            queue.admitted += count
            self.children[name] = queue


class Machine(Protocol):
    """A machine that several platforms share."""

    @property
    def other_instances(self) -> int:
        """Instances of the other platforms."""

    def set_instances(self, count: int) -> None:
        """Announce how many instances this platform has, or is about to have."""


class Admission:
    """Admits creates while there is capacity, and queues the others."""

    def __init__(
        self, capacity: Capacity | None = None, metrics: Metrics | None = None, machine: Machine | None = None
    ) -> None:
        """``machine``: usage of the same capacity by other platforms on this machine."""
        self.capacity = capacity or Capacity()
        self._machine = machine
        self._recheck_timer: asyncio.TimerHandle | None = None
        self._metrics = metrics or Metrics()
        self._alive = 0
        self._creating = 0
        self._slot_waiters: deque[asyncio.Future[None]] = deque()
        self._queue = _Queue()
        self._waiting: set[AdmissionTicket] = set()
        self._pace = 0.0
        self._last_admission = 0.0
        self._metrics.gauge("queue_length", self._queue_lengths)
        self._metrics.gauge("places", self._places)

    def request(
        self, experiment: str, owner: str, count: int, seconds: float | None = None, *, account: str = ""
    ) -> AdmissionTicket:
        """Admit ``count`` instances now, or queue them for at most ``seconds``.

        Raises:
            QuotaExceeded: they would not fit even if the platform were empty.
        """
        ticket = AdmissionTicket(self, experiment, owner, count, account)
        limit = self.capacity.alive
        if limit and count > limit:
            raise QuotaExceeded(
                f"{count} instances were requested at once, and this platform runs at most {limit}{self._why_limited}",
                details={"limit": limit, "hint": f"Ask for at most {limit} in one request."},
            )
        if not self._waiting and self._fits(count):
            self._admit(ticket)
            return ticket
        self._waiting.add(ticket)
        queue = self._queue
        for name in ticket.path:
            queue = queue.child(name)
        queue.tickets.append(ticket)
        ticket.enqueue(min(self.capacity.wait if seconds is None else seconds, MAX_WAIT_SECONDS))
        self._schedule_recheck()
        return ticket

    def admit_existing(self, experiment: str, owner: str) -> AdmissionTicket:
        """Admit an instance that already exists, even above capacity."""
        ticket = AdmissionTicket(self, experiment, owner, 1)
        self._admit(ticket)
        return ticket

    def queue_reason(self, ticket: AdmissionTicket) -> str:
        """Return a message that says why a ticket waits."""
        limit = self.capacity.alive
        ahead = self._count_ahead(ticket)
        used = f"{self._in_use} of {limit} instances{self._why_limited}"
        return f"the platform is full ({used}), and {ahead} are ahead in the queue"

    def release(self, ticket: AdmissionTicket) -> None:
        """Release or withdraw one instance of a ticket."""
        if ticket.count == 0:
            return
        ticket.count -= 1
        if ticket.admitted:
            self._alive -= 1
            self._announce(self._alive)
        elif ticket.count == 0 and ticket in self._waiting:
            self._remove(ticket)
            self._metrics.count("queue_total", outcome="left", experiment=ticket.experiment)
        self._admit_waiting()

    def expire(self, ticket: AdmissionTicket, seconds: float) -> None:
        """Refuse a ticket whose queue timeout has passed."""
        if ticket not in self._waiting:
            return
        ahead = self._count_ahead(ticket)
        after = min(RETRY_MAX, max(RETRY_MIN, math.ceil(self._pace * (ahead + 1)))) if self._pace else RETRY_UNKNOWN
        self._remove(ticket)
        self._metrics.count("queue_total", outcome="expired", experiment=ticket.experiment)
        details = {"retry_after": after, "hint": "End instances that are not needed, or wait longer."}
        if self.capacity.resource:
            details["resource"] = self.capacity.resource
        kind = CapacityExhausted if self.capacity.resource else Overloaded
        error = kind(
            f"no capacity became free within {seconds:g} s: the platform runs {self._in_use} of {self.capacity.alive} "
            f"instances{self._why_limited}, and {ahead} are ahead in the queue",
            details=details,
        )
        ticket.resolve(error)
        self._admit_waiting()

    # --- concurrent creates

    async def acquire_create_slot(self) -> None:
        """Wait until one more instance may be created, in order of arrival; `release_create_slot` must follow."""
        limit = self.capacity.creating
        if not limit or (self._creating < limit and not self._slot_waiters):
            self._creating += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._slot_waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release_create_slot()
            else:
                self._slot_waiters.remove(waiter)
            raise

    def release_create_slot(self) -> None:
        """Let the next create begin."""
        self._creating -= 1
        while self._slot_waiters and self._creating < self.capacity.creating:
            waiter = self._slot_waiters.popleft()
            if not waiter.done():
                self._creating += 1
                waiter.set_result(None)

    # --- internals

    def _fits(self, count: int) -> bool:
        if not self.capacity.alive:
            return True
        # Before reading the others' usage, so that two platforms never both take the last place.
        self._announce(self._alive + count)
        if self._in_use + count <= self.capacity.alive:
            return True
        self._announce(self._alive)
        return False

    @property
    def _why_limited(self) -> str:
        """Origin of the limit, for messages."""
        return f", limited by {self.capacity.resource}" if self.capacity.resource else ""

    @property
    def _in_use(self) -> int:
        """Instances of all platforms that share the capacity."""
        return self._alive + (self._machine.other_instances if self._machine is not None else 0)

    def _announce(self, count: int) -> None:
        if self._machine is not None:
            self._machine.set_instances(count)

    def _schedule_recheck(self) -> None:
        """Check again soon: other platforms do not notify this one when they release capacity."""
        if self._machine is not None and self._waiting and self._recheck_timer is None:
            pause = RECHECK_SECONDS * random.uniform(0.5, 1.5)  # jitter, so that two platforms do not yield forever
            self._recheck_timer = asyncio.get_running_loop().call_later(pause, self._recheck)

    def _recheck(self) -> None:
        self._recheck_timer = None
        self._admit_waiting()
        self._schedule_recheck()

    def _admit(self, ticket: AdmissionTicket) -> None:
        self._alive += ticket.count
        self._announce(self._alive)
        now = time.monotonic()
        if self._last_admission and ticket.waiting:
            self._pace = 0.8 * self._pace + 0.2 * (now - self._last_admission) / ticket.count
        self._last_admission = now
        if ticket.waiting:
            self._metrics.observe("queue_wait_ms", (now - ticket.since) * 1000)
            self._metrics.count("queue_total", outcome="admitted", experiment=ticket.experiment)
        ticket.resolve()

    def _admit_waiting(self) -> None:
        while self._waiting:
            queue = self._queue
            while not queue.tickets:
                queue = queue.next_child()
            ticket = queue.tickets[0]
            if not self._fits(ticket.count):
                return
            queue.tickets.popleft()
            self._waiting.discard(ticket)
            for name, parent in reversed(self._parents(ticket)):
                parent.charge(name, ticket.count)
            self._admit(ticket)

    def _remove(self, ticket: AdmissionTicket) -> None:
        self._waiting.discard(ticket)
        parents = self._parents(ticket)
        name, parent = parents[-1]
        parent.children[name].tickets.remove(ticket)
        for name, parent in reversed(parents):
            if parent.children[name].is_empty:
                del parent.children[name]

    def _parents(self, ticket: AdmissionTicket) -> list[tuple[str, _Queue]]:
        """Return the queues on the way to a ticket's own, from the outermost, each with the name of its child on that
        way.
        """
        parents, queue = [], self._queue
        for name in ticket.path:
            parents.append((name, queue))
            queue = queue.children[name]
        return parents

    def _count_ahead(self, ticket: AdmissionTicket) -> int:
        """Count the instances of tickets that arrived earlier; fairness may still admit some of them later."""
        return sum(other.count for other in self._waiting if other.since < ticket.since)

    def _queue_lengths(self) -> list[tuple[dict[str, str], float]]:
        tally: Tally[str] = Tally()
        for ticket in self._waiting:
            tally[ticket.experiment] += ticket.count
        return [({"experiment": name}, float(count)) for name, count in tally.items()]

    def _places(self) -> list[tuple[dict[str, str], float]]:
        facts = {"used": self._alive, "creating": self._creating, "limit": self.capacity.alive}
        return [({"state": name}, float(count)) for name, count in facts.items()]
