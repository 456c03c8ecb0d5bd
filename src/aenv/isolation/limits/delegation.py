"""Delegated control group: move this process to a group in which it may create child groups.

On most hosts with control groups of version 2, systemd owns them and gives any user who asks a *delegated scope*. That
is how an ordinary user's sandboxes get enforced limits. Without systemd, or if it refuses, nothing changes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from aenv.isolation.limits.cgroups import TOP, own_group
from aenv.subprocesses import run

LEAF = "server"
"""Child group that this process moves to: a group with processes cannot limit its children."""
REPLY_SECONDS, MOVE_SECONDS = 5.0, 2.0
"""Seconds for systemd to reply, and then to move the process. Only overloaded hosts need more than a hundredth."""


def enter_delegated_group(top: Path = TOP) -> bool:
    """Move this process to a child of a delegated group; return whether that worked.

    Servers call this before they start other processes: a scope ends with its last process.
    """
    if not (top / "cgroup.controllers").exists():
        return False
    own = own_group(top)
    if _is_delegated(own):
        return _enter_leaf(own)
    name = f"aenv-{os.getpid()}-{secrets.token_hex(3)}.scope"
    return _request_scope(name) and _wait_until_in(name, top) and _enter_leaf(own_group(top))


def _is_delegated(group: Path) -> bool:
    """Return True if this process may manage the group: systemd marks units that have ``Delegate=yes``."""
    if _systemd_runs():
        try:
            return os.getxattr(group, "user.delegate") == b"1" and _is_alone(group)
        except OSError:
            return False
    return _is_alone(group)


def _is_alone(group: Path) -> bool:
    try:
        return (group / "cgroup.procs").read_text().split() == [str(os.getpid())]
    except OSError:
        return False


def _systemd_runs() -> bool:
    return Path("/run/systemd/system").is_dir()


def _request_scope(name: str) -> bool:
    """Ask systemd to move this process to a new scope; the move happens some time after the reply."""
    if not _systemd_runs() or os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):
        return False  # a process that systemd started as a service stays in that service
    if os.geteuid() == 0:
        bus = "--system"
    else:
        path = Path(f"/run/user/{os.geteuid()}/bus")
        if not path.is_socket():
            return False
        bus = f"--address=unix:path={path}"
    properties = [
        "Description", "s", "AEnvironment",
        "PIDs", "au", "1", str(os.getpid()),
        "Delegate", "b", "true",
        "CollectMode", "s", "inactive-or-failed",
    ]  # fmt: skip
    call = [
        "busctl", bus, "--quiet", "call",
        "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
        "StartTransientUnit", "ssa(sv)a(sa(sv))", name, "fail", "4", *properties, "0",
    ]  # fmt: skip
    try:
        return run(call, timeout=REPLY_SECONDS).ok
    except OSError:  # TimeoutError is one, too
        return False


def _wait_until_in(name: str, top: Path) -> bool:
    """Wait until this process is in the scope; False if that takes more than `MOVE_SECONDS`."""
    deadline = time.monotonic() + MOVE_SECONDS
    while own_group(top).name != name:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def _enter_leaf(group: Path) -> bool:
    leaf = group / LEAF
    with contextlib.suppress(OSError):
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0")
        return True
    return False
