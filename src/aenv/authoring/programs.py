"""Kill the programs that tools have started, before a reward is computed."""

from __future__ import annotations

import contextlib
import os
import signal


def end_programs() -> bool:
    """Kill every other process of the instance, so that none of them can change what is graded or use its CPU time.

    Call it at the start of a reward. Outside of an instance (``aenv run``, a unit test) it kills nothing, since other
    processes do not belong to the environment there.

    Returns:
        Whether this is an instance, so that the processes were killed.
    """
    if os.getpid() != 1:
        return False
    with contextlib.suppress(ProcessLookupError):  # no other process exists
        os.kill(-1, signal.SIGKILL)  # all processes of the PID namespace but its init, which is this process
    return True
