"""Notice that the kernel killed a process of a container at its memory limit, with control groups of version 1.

Docker says so itself, and Podman does with version 2. With version 1 Podman misses it on some hosts, and an agent could
end its episode without a grade: a container that was killed from outside is an infra failure.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

_MEMORY = Path("/sys/fs/cgroup/memory")


class MemoryEvents:
    """Listens to the memory group of one container, where there is one."""

    def __init__(self, pid: int) -> None:
        """``pid``: the container's first process."""
        self.out_of_memory = False
        self._control: Path | None = None
        self._event = -1
        group = _group_of(pid)
        if group is None:
            return
        try:
            self._control = group / "memory.oom_control"
            control = os.open(self._control, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                (group / "cgroup.event_control").write_text(f"{self._event} {control}")
            finally:
                os.close(control)
            asyncio.get_running_loop().add_reader(self._event, self._look)
        except OSError:
            self.close()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        event, self._event = self._event, -1
        if event >= 0:
            asyncio.get_running_loop().remove_reader(event)
            os.close(event)

    def _look(self) -> None:
        """Handle an event: the group ran out of memory, or was removed."""
        os.eventfd_read(self._event)
        if self._control is not None and self._control.exists():  # the kernel tells first, and then kills
            self.out_of_memory = True
        else:
            self.close()


def _group_of(pid: int) -> Path | None:
    """Return the memory group of a process; None without control groups of version 1, or outside of any group."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") and path != "/":
            return _MEMORY / path[1:]
    return None
