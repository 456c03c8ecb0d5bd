"""Resource usage of a sandbox summed over its processes, for hosts without control groups or their counters."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def members(groups: Iterable[Path]) -> list[int]:
    """Return the pids in a control group, from the first of its folders that can be read."""
    for group in groups:
        with contextlib.suppress(OSError):
            return [int(word) for word in (group / "cgroup.procs").read_text().split()]
    return []


def listening_process(path: Path) -> int | None:
    """Return the host pid of the process that listens on a unix socket; a sandbox cannot tell its own host pid."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        probe.connect(str(path))
        return int(struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]) or None
    return None


def tree(root: int) -> list[int]:
    """Return the pids of a process and all its descendants."""
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        for thread in _threads(pid):
            with contextlib.suppress(OSError):
                todo += [int(word) for word in thread.joinpath("children").read_text().split()]
    return found


def usage(pids: Iterable[int]) -> dict[str, int]:
    """Return usage like `Cgroup.usage`. Only unshared memory counts, as most pages are shared with the zygote."""
    cpu = memory = count = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
            pages = Path(f"/proc/{pid}/statm").read_text().split()
            cpu += sum(map(int, times)) * TICK
            memory += (int(pages[1]) - int(pages[2])) * PAGE
            count += 1
    return {"cpu_nanoseconds": cpu, "memory_bytes": memory, "processes": count} if count else {}


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
