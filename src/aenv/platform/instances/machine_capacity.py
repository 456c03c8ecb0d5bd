"""Default capacity: how many instances a machine has memory and processes for."""

from __future__ import annotations

import contextlib
from pathlib import Path

MEMORY_PER_INSTANCE = 4 << 20
"""Bytes that an idle instance takes, everything included."""
PROCESSES_PER_INSTANCE = 4
MIN_INSTANCES = 16


def instance_capacity(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many idle instances fit by memory and processes; 0: no limit is known.

    An upper bound that keeps a runaway loop from taking the machine down, not a promise: instances are held to their
    own
    limits.
    """
    memory = [_total_memory(proc), _number(groups / "memory.max"), _number(groups / "memory/memory.limit_in_bytes")]
    processes = [_number(proc / "sys/kernel/pid_max"), _number(groups / "pids.max"), _number(groups / "pids/pids.max")]
    bounds = [limit // MEMORY_PER_INSTANCE for limit in memory if limit] + [
        limit // PROCESSES_PER_INSTANCE for limit in processes if limit
    ]
    return max(MIN_INSTANCES, min(bounds)) if bounds else 0


def _total_memory(proc: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) << 10
    return None


def _number(path: Path) -> int | None:
    """Return the number in a file; None if it holds no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
