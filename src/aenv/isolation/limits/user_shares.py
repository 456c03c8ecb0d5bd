"""What a user namespace may have of the things that the kernel counts for each user of the host: inotify and fanotify.

All that an instance has counts for the host's user as well, who may have 128 inotify instances on most systems. Without
a limit in its own namespace, one instance could take them all, and every editor and server of that user went without.
Namespaces are counted in the same way; the system-call filter lets an instance make none.
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
"""Files below /proc/sys/user, one per user namespace, and those below /proc/sys/fs that have the host's limit."""
INSTANCE = (1, 8)
"""The share of one instance."""
PARENT = (3, 4)
"""The share of a warm parent with all its instances: the rest is for the host's user."""


def limits_for(share: tuple[int, int]) -> list[tuple[str, str]]:
    """Return what to write into which files of /proc/sys/user; nothing where they cannot be written."""
    part, whole = share
    found = []
    with contextlib.suppress(OSError):
        if os.statvfs("/proc/sys/user").f_flag & os.ST_RDONLY:
            return []
        for name, host in _HOST_LIMITS.items():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/sys/fs/{host}") as file:
                most = max(1, int(file.read()) * part // whole)
                if os.path.exists(f"/proc/sys/user/{name}"):
                    found.append((name, str(most)))
    return found


def apply_limits(share: tuple[int, int]) -> None:
    """Set them for the user namespace that this process is in, and has all rights over."""
    for name, text in limits_for(share):
        with contextlib.suppress(OSError), open(f"/proc/sys/user/{name}", "w") as file:
            file.write(text)
