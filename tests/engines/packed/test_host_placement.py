"""Which host takes an instance, and how many hosts there have to be."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.engines.packed.host_placement import BUSY, HostSize, choose, missing

SIZE = HostSize(instances=4, memory=400)


@dataclass
class Host:
    name: str = "host"
    accepting: bool = True
    instances: int = 0
    creating: int = 0
    reserved: int = 0
    used: float = 0.0
    projects: tuple[str, ...] = ()

    def is_warm(self, project: str) -> bool:
        return project in self.projects


@pytest.mark.parametrize(
    "full", [Host(accepting=False), Host(instances=4), Host(instances=1, reserved=301), Host(instances=1, used=0.95)]
)
def test_a_host_without_room_gets_no_instance(full: Host) -> None:
    assert choose([full], "p", 100, SIZE) is None
    free = Host("free")
    assert choose([full, free], "p", 100, SIZE) is free


def test_an_instance_goes_where_its_environment_is_warm_and_else_to_the_fullest_host() -> None:
    fuller, warm = Host(instances=3), Host(instances=1, projects=("p",))
    assert choose([fuller, warm, Host()], "p", 1, SIZE) is warm
    assert choose([Host(), fuller], "p", 1, SIZE) is fuller


def test_a_burst_is_spread_over_cold_hosts_too() -> None:
    busy, idle = Host(instances=2, creating=BUSY, projects=("p",)), Host()
    assert choose([busy, idle], "p", 1, SIZE) is idle


def test_an_instance_that_needs_more_than_a_host_has_gets_an_empty_host() -> None:
    assert choose([Host(instances=1)], "p", 500, SIZE) is None
    assert choose([Host()], "p", 500, SIZE) is not None
    assert missing([500, 500], 0, SIZE) == 2


@given(st.lists(st.integers(min_value=1, max_value=400), max_size=60), st.integers(min_value=0, max_value=5))
def test_the_hosts_to_add_have_room_for_all_that_wait_and_none_is_in_vain(waiting: list[int], starting: int) -> None:
    added = missing(waiting, starting, SIZE)
    hosts = [Host(str(number)) for number in range(added + starting)]
    for wanted in waiting:  # one after the other, as they are placed
        found = choose([host for host in hosts if host.instances < SIZE.instances], "p", wanted, SIZE)
        if found is None:
            break
        found.instances, found.reserved = found.instances + 1, found.reserved + wanted
    assert added <= len(waiting)
    assert starting + added >= -(-len(waiting) // SIZE.instances)
    assert starting + added >= -(-sum(waiting) // SIZE.memory)
