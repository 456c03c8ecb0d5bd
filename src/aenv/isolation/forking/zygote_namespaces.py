"""Move a zygote out of the host's namespaces: first the files, then users, processes and network."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from aenv.isolation.files import custom_rootfs, private_folder, rootfs
from aenv.isolation.forking.zygote_spec import ZygoteSpec
from aenv.isolation.kernel import linux
from aenv.isolation.limits import host_users, user_shares


def leave_files(spec: ZygoteSpec) -> list[str]:
    """Leave the host's files, and become an ordinary user. The result is an argument of `rootfs.private_places`."""
    private_folder.load(spec.project if spec.files is None else None)
    owner, group = os.geteuid(), os.getegid()
    user = host_users.claim() if owner == 0 and spec.user is None else spec.user
    if owner == 0 and user is not None:
        host_users.check_mapped(user)
    with contextlib.suppress(OSError):
        linux.leave_session_keyring()
    if owner == 0:
        linux.unshare(linux.CLONE_NEWNS)
    else:
        linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
        linux.map_user(rootfs.USER_ID, owner, group, bounded=False)
    # Mounted over /sys: every host has it and no sandbox needs it, so no folder is created or left behind.
    hidden: list[str] = []
    more: dict[str, Any] = {"host_network": spec.host_network, "files": spec.files, "volume": spec.volume}
    more["disk"] = spec.disk
    if spec.base is not None:
        custom_rootfs.build("/sys", spec.base, spec.shown, spec.project, user, **more)
    else:
        shown = [*rootfs.interpreter_paths(), *spec.shown]
        hidden = rootfs.build("/sys", shown, spec.project, user, **more)
    if owner == 0 and user is not None:
        owner = group = user
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(owner, owner, owner)
        linux.set_dumpable(True)
    return hidden


def leave_users(spec: ZygoteSpec) -> None:
    """Leave the host's users, processes and network."""
    private_folder.receive_from_exec()
    if spec.base is not None:
        custom_rootfs.configure_name_services()
    inside = (os.geteuid(), os.getegid())
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | spec.fresh)
    linux.map_user(rootfs.USER_ID, *inside, bounded=False)
    user_shares.apply_limits(user_shares.PARENT)


def explain(error: OSError) -> str:
    """Return what the host forbids, and the command that allows it."""
    text = str(error)
    if "unshare" not in text and "/proc/self" not in text:
        return text
    for path, good, command in (
        ("/proc/sys/kernel/unprivileged_userns_clone", "1", "sudo sysctl kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0",
         "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
        ("/proc/sys/user/max_user_namespaces", None, "sudo sysctl user.max_user_namespaces=15000"),
    ):  # fmt: skip
        with contextlib.suppress(OSError), open(path) as file:
            value = file.read().strip()
            if value == "0" if good is None else value != good:
                return f"this host forbids user namespaces ({path} is {value}); allow them with: {command}"
    return (
        f"this host forbids user namespaces ({text}); in a container, start it with --security-opt seccomp=unconfined"
    )
