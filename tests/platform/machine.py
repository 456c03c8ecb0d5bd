"""Processes, sockets and control groups of the servers on one data folder, seen from outside."""

from __future__ import annotations

import os
from pathlib import Path

from tests.isolation.host import CGROUPS, Process, processes
from tests.waiting import wait_while


class Machine:
    """Everything that belongs to a data folder. A process seen once is remembered."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._seen: set[Process] = set()
        self._groups: set[str] = set()

    def processes(self) -> list[Process]:
        """Return all living processes, parents first."""
        everything = processes()
        ours = {pid for pid in everything if pid != os.getpid() and self._is_marked(pid)}
        grown = True
        while grown:
            below = {p.pid for p in everything.values() if p.parent in ours} - ours
            ours |= below
            grown = bool(below)
        self._seen |= {everything[pid] for pid in ours}
        self._groups |= {path.name for path in self.data.glob("aenv-serve-*")}
        return sorted((p for p in self._seen if p.alive), key=lambda p: (p.started, p.pid))

    def _is_marked(self, pid: int) -> bool:
        """Return whether a process is ours: servers have the folder in their variables, helpers in their arguments."""
        command = _read(f"/proc/{pid}/cmdline")
        if "pytest" in command:
            return False
        return str(self.data) in command or f"AENV_DATA_DIR={self.data}\0" in _read(f"/proc/{pid}/environ") + "\0"

    def servers(self) -> list[Process]:
        return [p for p in self.processes() if "aenv.cli serve" in p.command or "tests/chaos/server.py" in p.command]

    def fd_holders(self) -> list[Process]:
        return [p for p in self.processes() if "fd_holder.py" in p.command]

    def zygotes(self) -> list[Process]:
        """Return the outer process of each zygote, which waits, and the inner ones, which fork."""
        found = [p for p in self.processes() if "aenv.isolation.forking.zygote" in p.command]
        return [p for p in found if p.depth == 1 or (p.depth == 2 and p.is_first)]

    def sandboxes(self) -> set[str]:
        """Return the sockets that are listened on. Each instance has one, and so does each sandbox in the pool."""
        lines = _read("/proc/net/unix").splitlines()
        paths = {line.split()[-1] for line in lines if line.endswith(".sock")}
        return {path for path in paths if path.startswith(f"{self.data}/") and "/instances/" in path}

    def cgroups(self) -> list[Path]:
        self.processes()
        own = CGROUPS / _read("/proc/self/cgroup").rpartition("0::")[2].strip().lstrip("/")
        tops = [CGROUPS, own, own.parent, *(CGROUPS / name for name in ("memory", "pids", "cpu"))]
        return sorted({top / name for top in tops for name in self._groups if (top / name).is_dir()})

    def left_behind(self) -> list[str]:
        """Return what should be gone once no server runs."""
        left = [f"process {p.pid} {p.command}" for p in self.processes()]
        left += [f"socket {path}" for path in self.sandboxes()]
        left += [f"cgroup {path}" for path in self.cgroups()]
        left += [f"folder {path}" for path in self.data.glob("aenv-serve-*")]
        left += [f"mount {line}" for line in _read("/proc/self/mounts").splitlines() if f"{self.data}/" in line]
        return left

    def is_clean(self, seconds: float = 60.0) -> None:
        """Wait for it: the kernel does not tell when the last process has ended."""
        wait_while(self.left_behind, "left behind", seconds)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
