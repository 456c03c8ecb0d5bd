"""CPU time and descriptors of a platform's processes by kind, from /proc."""

import os
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
_KTHREADD = 2


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    own: float
    """CPU seconds of its own."""
    reaped: float
    """CPU seconds of the children that it has reaped."""


def _processes() -> dict[int, _Process]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        ticks = [int(field) for field in fields[11:15]]
        found[int(stat.parent.name)] = _Process(int(fields[1]), sum(ticks[:2]) / TICKS, sum(ticks[2:]) / TICKS)
    return found


class CpuMeter:
    """CPU seconds since it was made: the server, the zygotes, the preloaded parents, the instances, the kernel.

    Instances come and go: their time is what the zygotes' reaped children used. A long-lived descendant without any
    reaped children is a preloaded parent.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._before = _processes()

    def read(self) -> dict[str, float]:
        now = _processes()
        spent = dict.fromkeys(("server", "zygotes", "parents", "instances", "kernel"), 0.0)
        for pid, process in now.items():
            before = self._before.get(pid)
            if before is None:
                continue
            own = process.own - before.own
            if pid == self._server:
                spent["server"] += own
            elif process.parent == _KTHREADD:
                spent["kernel"] += own
            elif self._is_below(pid, now):
                spent["zygotes" if process.reaped else "parents"] += own
                spent["instances"] += process.reaped - before.reaped
        return spent

    def _is_below(self, pid: int, processes: dict[int, _Process]) -> bool:
        while pid in processes and pid > 1:
            if pid == self._server:
                return True
            pid = processes[pid].parent
        return False


def open_descriptors(pid: int) -> int:
    """Return the number of open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_in_use() -> float:
    """Return the megabytes in use on the whole machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kb = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return (kb["MemTotal"] - kb["MemAvailable"]) * 1024 / 1e6


def busy_seconds() -> float:
    """Return the CPU seconds that all cores were busy since the machine was started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in fields]
    return (sum(ticks[:8]) - ticks[3] - ticks[4]) / TICKS
