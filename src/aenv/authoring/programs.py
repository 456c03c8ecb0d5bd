"""What a reward does before it looks: end the programs that tools have started."""

from __future__ import annotations

import contextlib
import os
import signal


def end_programs() -> bool:
    """Kill every other process of the instance, so that none of them changes what is graded, or takes its time.

    Whether it was done: outside of an instance nothing is, since other processes there are not the environment's.
    """
    if os.getpid() != 1:
        return False
    with contextlib.suppress(ProcessLookupError):  # there are none
        os.kill(-1, signal.SIGKILL)  # all but the first process of the namespace, which is this one
    return True
