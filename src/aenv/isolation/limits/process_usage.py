"""What a sandbox uses, by its processes: for hosts on which its control group cannot tell, or there is none."""

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
    """The processes in a control group."""
    for group in groups:
        with contextlib.suppress(OSError):
            return [int(word) for word in (group / "cgroup.procs").read_text().split()]
    return []


def listening_process(path: Path) -> int | None:
    """Who listens on a unix socket: a sandbox cannot say which process it is on the host, but the kernel can."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        probe.connect(str(path))
        return int(struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]) or None
    return None


def tree(root: int) -> list[int]:
    """A process and all that it has started."""
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        for thread in _threads(pid):
            with contextlib.suppress(OSError):
                todo += [int(word) for word in thread.joinpath("children").read_text().split()]
    return found


def usage(pids: Iterable[int]) -> dict[str, int]:
    """Like `Cgroup.usage`. Of memory only what is a process's own, as most of it is shared with the warm parent."""
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
