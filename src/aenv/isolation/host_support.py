"""Check whether this host lets this user create sandboxes, and name the obstacle if it does not."""

from __future__ import annotations

import os
import sys
import tempfile

from aenv.isolation.files import rootfs
from aenv.isolation.forking import zygote_namespaces
from aenv.isolation.forking.zygote_spec import FRESH, ZygoteSpec
from aenv.isolation.kernel import linux, seccomp
from aenv.isolation.kernel.syscall_plan import SyscallPlan
from aenv.isolation.limits import host_users
from aenv.subprocesses import run


def unsupported_reason() -> str | None:
    """Return None if sandboxes work here, else what is missing and how to get it.

    The check creates a real sandbox's namespaces and mounts in a separate process.
    """
    if sys.platform != "linux":
        return f"sandboxes need Linux; this is {sys.platform}"
    if not seccomp.supported():
        return f"there is no system-call filter for {linux.MACHINE} yet"
    command = [sys.executable, "-P", "-m", "aenv.isolation.host_support"]  # -P: import nothing from the current folder
    probe = run(command)
    return None if probe.ok else (probe.stdout.strip() or probe.stderr.strip()[-500:])


def _probe() -> None:
    """Create the namespaces and mounts of a sandbox, then exit: 0 on success, else 1 with the reason on stdout."""
    spec = ZygoteSpec("", "", "", "", "", user=65534 if os.geteuid() == 0 else None)
    try:
        if spec.user is not None:
            host_users.check_mapped(host_users.FIRST)  # sandboxes have these, and not the one of this check
        hidden = zygote_namespaces.leave_files(spec)
        zygote_namespaces.leave_users(spec)
        child = os.fork()
        if child == 0:
            try:
                linux.unshare(FRESH)
                plan = SyscallPlan()
                rootfs.mount_writable(plan, size=1 << 20, shown=hidden)
                rootfs.mount_proc(plan)
                plan.run()
            except OSError as error:
                print(zygote_namespaces.explain(error), flush=True)  # noqa: T201
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    except OSError as error:
        print(zygote_namespaces.explain(error))  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    os.chdir(tempfile.gettempdir())
    _probe()
