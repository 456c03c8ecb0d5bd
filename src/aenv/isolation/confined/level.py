"""Isolation levels of sandboxes on this machine, and which of them it offers."""

from __future__ import annotations

import os
import sys
from typing import Literal

from aenv.isolation.kernel import landlock, linux, seccomp
from aenv.subprocesses import run

Isolation = Literal["namespaces", "confined"]
"""``namespaces``: user, process, mount, network, IPC and host name namespaces of its own. ``confined``: none of these;
Landlock and a stricter system-call filter in their place."""


def confined_refusal() -> str | None:
    """Return None if confined sandboxes work here, else what is missing. The check confines a separate process."""
    if sys.platform != "linux":
        return f"sandboxes need Linux; this is {sys.platform}"
    if not seccomp.supported():
        return f"there is no system-call filter for {linux.MACHINE} yet"
    found = landlock.abi()
    if found == 0:
        return "this kernel or container offers no Landlock (CONFIG_SECURITY_LANDLOCK, and landlock in the lsm= list)"
    if found < landlock.LEAST_ABI:
        return (
            f"this kernel has version {found} of Landlock, which does not keep signals inside of a sandbox: Linux 6.12 "
            f"or later has version {landlock.LEAST_ABI}"
        )
    probe = run([sys.executable, "-P", "-m", "aenv.isolation.confined.level"])
    return None if probe.ok else (probe.stdout.strip() or probe.stderr.strip()[-500:])


def _probe() -> None:
    """Confine this process as a sandbox is; exit with 0 if that worked."""
    try:
        linux.no_new_privileges()
        landlock.Ruleset(files=False).restrict()
        landlock.Ruleset().restrict()
        linux.load_seccomp(seccomp.confined(network=False, shared_user=True))
    except OSError as error:
        print(f"a process cannot be confined here: {error}", flush=True)  # noqa: T201
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _probe()
