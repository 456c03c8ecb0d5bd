"""The leader of a confined sandbox: a process of ours beside it, which ends everything of the sandbox with it.

There is no process namespace whose end would take all processes along. So each sandbox has a leader, in a Landlock
domain of its own; the sandbox's domain is nested in that one. ``kill(-1)`` by the leader reaches exactly the processes
of its domain, all at once: no fork escapes it, and nothing else of the same user is hit. The sandbox cannot signal its
leader, which is outside of its domain.

The leader ends the sandbox when its first process ends, and when the *leash* is released: the zygote holds the other
end of a pipe, so that the sandbox ends with the zygote, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from typing import NoReturn

from aenv.isolation.files.trees import remove_tree
from aenv.isolation.kernel import landlock, linux
from aenv.schema.exit_codes import STOPPED_BY_SIGNAL

REMOVE_SECONDS = 20.0
"""Time limit for removing the sandbox's files."""


def lead(run: Callable[[], None], leash: int, folder: str) -> NoReturn:
    """Fork the sandbox, which calls ``run``, and end with it. Removes ``folder``."""
    status: int | None = None
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        linux.die_with_parent(0)
        linux.adopt_orphans()
        landlock.Ruleset(files=False).restrict()
        status = _lead(run, leash, folder)
    finally:
        if status is None:  # such as too many processes: a failure of the host, and not the end of the sandbox
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            os._exit(_exit_code(status))


def _lead(run: Callable[[], None], leash: int, folder: str) -> int:
    pid = os.fork()
    if pid == 0:
        os.close(leash)
        run()
    os.closerange(3, leash)
    os.closerange(leash + 1, 1 << 20)
    ended = os.pidfd_open(pid)
    released, _, _ = select.select([leash, ended], [], [])
    status = 0
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)  # within the domain of this process
    while True:
        try:
            which, how = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if which == pid and leash not in released:
            status = how
    remove_tree(folder, REMOVE_SECONDS)
    return status


def _exit_code(status: int) -> int:
    """Return the exit code that tells how the sandbox has ended.

    A signal came from inside, since nothing else sends one: its programs can end their runtime. That is another exit
    code than the end of this process by a signal, which comes from outside.
    """
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else STOPPED_BY_SIGNAL
