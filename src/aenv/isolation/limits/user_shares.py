"""Limits per user namespace on resources that the kernel counts per host user: inotify and fanotify.

What an instance uses also counts for the host user, who may have 128 inotify instances on most systems. Without a limit
in its own namespace, one instance could take them all, and every editor and server of that user would fail. Namespaces
are counted in the same way; the system-call filter lets an instance create none.
"""

from __future__ import annotations

import contextlib
import os

_HOST_LIMITS = {
    "max_inotify_instances": "inotify/max_user_instances",
    "max_inotify_watches": "inotify/max_user_watches",
    "max_fanotify_groups": "fanotify/max_user_groups",
    "max_fanotify_marks": "fanotify/max_user_marks",
}
"""Files below /proc/sys/user, which are per user namespace, and those below /proc/sys/fs with the host's limit."""
INSTANCE = (1, 8)
"""Share of one instance."""
PARENT = (3, 4)
"""Share of a zygote with all its instances; the rest is left to the host user."""


def limits_for(share: tuple[int, int]) -> list[tuple[str, str]]:
    """Return which files of /proc/sys/user to write, and their contents; empty where they are read-only."""
    numerator, denominator = share
    found = []
    with contextlib.suppress(OSError):
        if os.statvfs("/proc/sys/user").f_flag & os.ST_RDONLY:
            return []
        for name, host in _HOST_LIMITS.items():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/sys/fs/{host}") as file:
                most = max(1, int(file.read()) * numerator // denominator)
                if os.path.exists(f"/proc/sys/user/{name}"):
                    found.append((name, str(most)))
    return found


def apply_limits(share: tuple[int, int]) -> None:
    """Set the limits of this process's user namespace, in which it must have all capabilities."""
    for name, text in limits_for(share):
        with contextlib.suppress(OSError), open(f"/proc/sys/user/{name}", "w") as file:
            file.write(text)
