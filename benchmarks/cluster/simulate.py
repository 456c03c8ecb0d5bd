"""Placement at scale, without a cluster: the decisions of packed hosts for many instances, and what each costs.

    python benchmarks/cluster/simulate.py [--instances N] [--per-host N]

The decisions are the platform's own code; hosts are numbers. Creates arrive in random order of environments, each takes
a while, and a part of the instances ends again, so that rooms become free in the middle.
"""

import argparse
import random
import time
from collections import deque
from dataclasses import dataclass, field

from aenv.engines.packed.host_placement import HostSize, choose, missing

MEMORY = 64 << 20
ENVIRONMENTS = 200
UNDER_WAY = 64
"""Creates at the same time."""
ENDING = 0.3
"""Part of the instances that end while others are created."""


@dataclass(eq=False)
class SimulatedHost:
    """A host, as the placement sees it."""

    accepting: bool = True
    instances: int = 0
    creating: int = 0
    reserved: int = 0
    used: float = 0.0
    warm: set[str] = field(default_factory=set)

    def is_warm(self, project: str) -> bool:
        return project in self.warm


def simulate(instances: int, per_host: int) -> tuple[int, float, float]:
    """Return the number of hosts, the part of creates on a warm host, and the seconds that all decisions took."""
    size = HostSize(per_host, per_host * MEMORY)
    chance = random.Random(7)
    hosts: list[SimulatedHost] = []
    under_way: deque[SimulatedHost] = deque()
    alive: list[SimulatedHost] = []
    warm, spent = 0, 0.0
    for _ in range(instances):
        project = f"environment-{chance.randrange(ENVIRONMENTS)}"
        began = time.perf_counter()
        host = choose(hosts, project, MEMORY, size)
        if host is None:
            hosts.extend(SimulatedHost() for _ in range(missing([MEMORY], 0, size)))
            host = choose(hosts, project, MEMORY, size)
        spent += time.perf_counter() - began
        assert host is not None
        warm += host.is_warm(project)
        host.warm.add(project)
        host.instances, host.creating, host.reserved = host.instances + 1, host.creating + 1, host.reserved + MEMORY
        under_way.append(host)
        alive.append(host)
        if len(under_way) > UNDER_WAY:
            under_way.popleft().creating -= 1
        if chance.random() < ENDING:
            place = chance.randrange(len(alive))
            alive[place], alive[-1] = alive[-1], alive[place]
            ended = alive.pop()
            ended.instances, ended.reserved = ended.instances - 1, ended.reserved - MEMORY
    return len(hosts), warm / instances, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=100_000)
    parser.add_argument("--per-host", type=int, default=100)
    args = parser.parse_args()
    print("| creates | hosts | on a warm host | one decision | decisions a second |")
    print("|---|---|---|---|---|")
    for count in sorted({args.instances // 100, args.instances // 10, args.instances}):
        hosts, warm, spent = simulate(count, args.per_host)
        cost = f"{spent / count * 1e6:.0f} us | {count / spent:,.0f}"
        print(f"| {count:,} | {hosts:,} | {warm:.0%} | {cost} |", flush=True)


if __name__ == "__main__":
    main()
