"""Default capacity: how many instances a machine has memory, processes and file descriptors for."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from pathlib import Path

MEMORY_PER_INSTANCE = 4 << 20
"""Bytes that an idle instance takes, everything included."""
PROCESSES_PER_INSTANCE = 3
"""Processes and threads of an instance, with some to spare for those that run programs."""
FILES_PER_INSTANCE = 1
"""File descriptors of the platform for one instance: the pipe of its log."""
FILES_PER_HELD_INSTANCE = 3
"""File descriptors for one instance in the process that holds them for the next server, with a record of each."""
FILES_OF_PLATFORM = 256
"""File descriptors that the platform needs for itself and its clients; a tenth of all if that is more."""
MIN_INSTANCES = 16


@dataclass(frozen=True, slots=True)
class MachineBound:
    """The number of instances that a machine has room for, and the resource that is used up first."""

    instances: int
    resource: str


def machine_bound(
    proc: Path = Path("/proc"),
    groups: Path = Path("/sys/fs/cgroup"),
    *,
    open_files: int | None = None,
    held: bool = False,
) -> MachineBound | None:
    """Return how many idle instances fit; None: no limit is known.

    An upper bound that keeps a runaway loop from taking the machine down, not a promise: instances are held to their
    own limits.

    ``open_files``: the limit of open file descriptors; None: that of this process. ``held``: another process holds
    descriptors of each instance for the next server.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if open_files is None else open_files
    own = max(FILES_OF_PLATFORM, files // 10)
    per_instance = FILES_PER_HELD_INSTANCE if held else FILES_PER_INSTANCE
    memory = (_total_memory(proc), _number(groups / "memory.max"), _number(groups / "memory/memory.limit_in_bytes"))
    processes = (_number(proc / "sys/kernel/pid_max"), _number(groups / "pids.max"), _number(groups / "pids/pids.max"))
    bounds = [
        *(_bound(limit, MEMORY_PER_INSTANCE, f"memory ({limit >> 20:,} MiB)") for limit in memory if limit),
        *(_bound(limit, PROCESSES_PER_INSTANCE, f"processes ({limit:,})") for limit in processes if limit),
    ]
    if files != resource.RLIM_INFINITY:
        bounds.append(_bound(max(0, files - own), per_instance, f"open files of the platform ({files:,})"))
    return min(bounds, key=lambda bound: bound.instances) if bounds else None


def instance_capacity(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup"), *, open_files: int | None = None
) -> int:
    """Return how many idle instances fit on this machine; 0: no limit is known."""
    bound = machine_bound(proc, groups, open_files=open_files)
    return bound.instances if bound else 0


def _bound(limit: int, per_instance: int, resource: str) -> MachineBound:
    return MachineBound(max(MIN_INSTANCES, limit // per_instance), resource)


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
