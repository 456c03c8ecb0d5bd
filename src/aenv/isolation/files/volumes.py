"""Volumes: host folders that a sandbox may write to and that outlive it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass

from aenv.isolation.kernel import linux
from aenv.isolation.kernel.syscall_plan import SyscallPlan

PARENT_MOUNT = "/.volume"
"""Mount point of the volume in the zygote. A sandbox binds it to its target, which may be in a writable folder of the
sandbox or in its project; the zygote has neither."""
_RESERVED = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc", "/proc", "/sys", "/dev", "/mnt",
    "/base", "/cover", "/.project", "/.masked", PARENT_MOUNT,
)  # fmt: skip
_REQUIRED = ("/app", "/tmp", "/var/tmp", "/run", "/home/env")
"""Folders that a volume must not hide."""


@dataclass(frozen=True, slots=True)
class Volume:
    """Host folder and its mount point."""

    source: str
    """Host folder. Sandboxes that root creates run as its owner, unless ``any_user``."""
    target: str
    read_only: bool = False
    any_user: bool = False
    """Sandboxes keep their usual user, and see what that user may read."""


def target_problem(target: str) -> str | None:
    """Return what is wrong with a mount point, or None."""
    if not target.startswith("/") or os.path.normpath(target) != target or "\0" in target or len(target) > 1024:
        return f"'{target}' is not an absolute, normalized path; write it like /home/admin/data"
    if _is_below(target, _RESERVED):
        return f"{target} is part of the instance's system; choose a folder of your own, like /data"
    if target in ("/", "/app") or any(_is_below(folder, (target,)) and folder != target for folder in _REQUIRED):
        return f"{target} contains folders that an instance needs; choose a folder in it"
    return None


def check_conflicts(volume: Volume, shown: Iterable[str]) -> None:
    """Raise OSError if the volume would be in, or hide, a path that the interpreter needs."""
    for path in shown:
        if _is_below(volume.target, (path,)) or _is_below(path, (volume.target,)):
            raise OSError(errno.EINVAL, f"a volume cannot be mounted at {volume.target}: the host's {path} is there")


def mount_in_parent(volume: Volume, root: str) -> None:
    """Mount a volume in the zygote's tree, before the zygote enters it."""
    linux.bind(volume.source, root + PARENT_MOUNT)
    (linux.make_read_only if volume.read_only else linux.make_plain)(root + PARENT_MOUNT)


def mount_in_sandbox(plan: SyscallPlan, volume: Volume, root: str = "") -> None:
    """Plan the volume's mount in a sandbox's own mount namespace."""
    target = root + volume.target
    plan.folder(target)
    plan.bind(PARENT_MOUNT, target)


def _is_below(path: str, tops: Iterable[str]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)
