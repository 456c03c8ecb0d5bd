"""A folder of the host that a sandbox may write to, and that is still there when the sandbox is not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass

from aenv.isolation.kernel import linux
from aenv.isolation.kernel.syscall_plan import SyscallPlan

PARENT_MOUNT = "/.volume"
"""Where the warm parent has it. A sandbox mounts it where it belongs: that may be in a place of the sandbox's own, or
in its project, neither of which the parent has."""
_RESERVED = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc", "/proc", "/sys", "/dev", "/mnt",
    "/base", "/cover", "/.project", "/.masked", PARENT_MOUNT,
)  # fmt: skip
_REQUIRED = ("/app", "/tmp", "/var/tmp", "/run", "/home/env")
"""What a sandbox cannot do without."""


@dataclass(frozen=True, slots=True)
class Volume:
    """What is mounted where."""

    source: str
    """A folder of the host. Its owner is whom root's sandboxes run as."""
    target: str
    read_only: bool = False


def target_problem(target: str) -> str | None:
    """What is wrong with a place to mount at."""
    if not target.startswith("/") or os.path.normpath(target) != target or "\0" in target or len(target) > 1024:
        return f"'{target}' is not the plain path of a folder; write it like /home/admin/data"
    if _is_below(target, _RESERVED):
        return f"{target} belongs to the system that an instance sees; choose a folder of your own, like /data"
    if target in ("/", "/app") or any(_is_below(place, (target,)) and place != target for place in _REQUIRED):
        return f"{target} holds what an instance cannot do without; choose a folder in it"
    return None


def check_conflicts(volume: Volume, shown: Iterable[str]) -> None:
    """Raise OSError where it would lie in, or hide, what the interpreter needs."""
    for path in shown:
        if _is_below(volume.target, (path,)) or _is_below(path, (volume.target,)):
            raise OSError(errno.EINVAL, f"a volume cannot be mounted at {volume.target}: the host's {path} is there")


def mount_in_parent(volume: Volume, root: str) -> None:
    """In the warm parent's tree, before it is entered."""
    linux.bind(volume.source, root + PARENT_MOUNT)
    (linux.make_read_only if volume.read_only else linux.make_plain)(root + PARENT_MOUNT)


def mount_in_sandbox(plan: SyscallPlan, volume: Volume, root: str = "") -> None:
    """In a sandbox's own mount namespace."""
    target = root + volume.target
    plan.folder(target)
    plan.bind(PARENT_MOUNT, target)


def _is_below(path: str, tops: Iterable[str]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)
