"""Choose the host of an instance and the number of hosts to add: pure functions, without a cluster.

An instance goes where its environment is warm, then to the host with the fewest creates under way, then to the fullest
one: so that a burst is spread over all hosts, and the emptier hosts become empty and can go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

BUSY = 4
"""Creates under way on a warm host from which on a host that has to load the environment first is as good."""
FULL = 0.9
"""Part of its memory limit that a host may use before it gets no more instances."""


@dataclass(frozen=True, slots=True)
class HostSize:
    """Room of one host."""

    instances: int
    """Most instances on it."""
    memory: int
    """Bytes that their reservations may add up to."""


class HostLoad(Protocol):
    """Load of a host, as far as the platform knows it."""

    @property
    def accepting(self) -> bool:
        """True while the host runs and takes instances."""

    @property
    def instances(self) -> int:
        """Instances on it, and those that are being created there."""

    @property
    def creating(self) -> int:
        """Creates under way."""

    @property
    def reserved(self) -> int:
        """Bytes that its instances have reserved."""

    @property
    def used(self) -> float:
        """Part of its memory limit that is in use, as last measured."""

    def is_warm(self, project: str) -> bool:
        """Return whether instances of this project have been created on the host."""


H = TypeVar("H", bound=HostLoad)


def choose(hosts: Iterable[H], project: str, memory: int, size: HostSize) -> H | None:
    """Return the host for an instance that reserves that much memory; None if none has room."""
    able = [host for host in hosts if has_room(host, memory, size)]
    return min(able, key=lambda host: _cost(host, project), default=None)


def has_room(host: HostLoad, memory: int, size: HostSize) -> bool:
    """Return whether a host can take such an instance now."""
    return (
        host.accepting
        and host.instances < size.instances
        and (host.reserved + memory <= size.memory or not host.instances)
        and host.used < FULL
    )


def missing(waiting: Iterable[int], starting: int, size: HostSize) -> int:
    """Return how many hosts to add for creates that wait. ``waiting``: the memory that each reserves.

    ``starting``: hosts that are being created already.
    """
    needed, instances, memory = 0, size.instances, 0
    for wanted in waiting:
        if instances >= size.instances or memory + wanted > size.memory:
            needed, instances, memory = needed + 1, 0, 0
        instances, memory = instances + 1, memory + wanted
    return max(0, needed - starting)


def _cost(host: HostLoad, project: str) -> tuple[int, bool, int]:
    return host.creating // BUSY, not host.is_warm(project), -host.instances
