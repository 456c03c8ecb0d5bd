"""What /proc says about a tree of processes. The standard library only: it runs in every peer's environment."""

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
_GROWING = ("AnonPages", "Shmem", "Slab", "PageTables", "KernelStack", "Percpu")


def children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended while we looked
            continue
        found.setdefault(parent, []).append(int(stat.parent.name))
    return found


def descendants(root: int, depth: int = 1) -> list[int]:
    """All processes at least ``depth`` generations below ``root``."""
    below, level, found = children(), [root], []
    generation = 0
    while level:
        if generation >= depth:
            found += level
        level = [child for pid in level for child in below.get(pid, ())]
        generation += 1
    return found


def memory(pids: list[int]) -> dict[str, float]:
    """Mean USS and PSS in MB: what only it has, and that with its share of what it has in common with others."""
    own = share = counted = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        fields = {line.partition(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
        own += fields["Private_Clean"] + fields["Private_Dirty"] + fields.get("Private_Hugetlb", 0)
        share += fields["Pss"]
        counted += 1
    mb = 1024 / 1e6 / max(counted, 1)
    return {"processes": counted, "uss_mb": own * mb, "pss_mb": share * mb}


def cpu(pids: list[int]) -> dict[int, int]:
    """Ticks used so far, by process."""
    used = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used[pid] = int(fields[11]) + int(fields[12])
    return used


def system_memory() -> dict[str, float]:
    """MB in use on the whole machine, and of what kind; caches that can be dropped are not in use."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kb = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    used = {"used": kb["MemTotal"] - kb["MemAvailable"], **{name: kb.get(name, 0) for name in _GROWING}}
    return {name: value * 1024 / 1e6 for name, value in used.items()}
