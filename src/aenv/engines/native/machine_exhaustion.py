"""Tell a caller which resource of this machine is used up, where the kernel has refused one."""

from __future__ import annotations

import errno
import resource

from aenv.errors import CapacityExhausted

RETRY_SECONDS = 5


def exhausted(number: int | None) -> CapacityExhausted | None:
    """Return the error for a create that failed with this error of the kernel; None if it is not about capacity."""
    match number:
        case errno.EMFILE:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            what = f"open files of the platform ({limit:,}, see `ulimit -n`)"
        case errno.ENFILE:
            what = "open files of the machine (fs.file-max)"
        case errno.EAGAIN:
            what = "processes (kernel.pid_max, `ulimit -u`, or pids.max of a control group)"
        case errno.ENOMEM:
            what = "memory"
        case errno.ENOSPC | errno.EUSERS:
            what = "space of a file system, namespaces (user.max_*_namespaces) or control groups"
        case _:
            return None
    return CapacityExhausted(
        f"this machine has no room for another instance now; it has used up its {what}",
        details={"retry_after": RETRY_SECONDS, "resource": what, "hint": "End instances that are not needed."},
    )
