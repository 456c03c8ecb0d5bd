"""Tell a process from a later one with the same number."""

from __future__ import annotations

from pathlib import Path


def start_time(pid: int) -> str | None:
    """Return a process's start time in kernel ticks, with the boot id; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{stat[19]}-{Path('/proc/sys/kernel/random/boot_id').read_text()[:8]}"
    except OSError:
        return None


def is_running(pid: int, started: str) -> bool:
    """Return True if the process that had this number and start time still exists."""
    return pid > 0 and start_time(pid) == started
