"""How many instances a machine has room for, for a platform that nobody has told."""

from __future__ import annotations

import contextlib
from pathlib import Path

MEMORY_EACH = 4 << 20
"""Bytes that an idle instance takes, all in."""
PROCESSES_EACH = 4
LEAST = 16


def room(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Instances that fit by their memory and processes when all of them are idle.

    It is an upper bound that keeps a runaway loop from taking the machine down, not a promise: what instances really
    use is bounded by their own limits.
    """
    memory = [_total_memory(proc), _number(groups / "memory.max"), _number(groups / "memory/memory.limit_in_bytes")]
    processes = [_number(proc / "sys/kernel/pid_max"), _number(groups / "pids.max"), _number(groups / "pids/pids.max")]
    bounds = [most // MEMORY_EACH for most in memory if most] + [most // PROCESSES_EACH for most in processes if most]
    return max(LEAST, min(bounds)) if bounds else 0


def _total_memory(proc: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) << 10
    return None


def _number(path: Path) -> int | None:
    """None where there is no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
