"""How a sandbox ended, and whose fault that is: the one place where an exit status is turned into a fault.

An instance that ended with `infra` or `env` leaves its episode without a reward, so nothing that an agent can bring
about from inside may be classified as one of these. This is about the end of an instance: after a call that failed with
`env` the instance goes on, and the failure is part of the episode.

The agent's processes cannot signal the runtime, which is the first process of its process namespace; at the isolation
level `confined` they can, and the leader of such a sandbox reports that as an exit code of its own. They can use up
the memory limit, and that is the agent's doing whichever process the kernel picks.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from aenv.errors import Fault
from aenv.schema.exit_codes import STOPPED_BY_SIGNAL

Cause = Literal["out_of_memory", "out_of_storage", "killed", "crashed", "exited", "signalled", "lost"]
"""``out_of_memory``: the kernel killed it at its memory limit. ``out_of_storage``: it was ended because it wrote more
than its storage limit. ``killed``: from outside of the sandbox.
``crashed``: by a signal that it caused itself, such as SIGSEGV. ``exited``: the environment's code ended the process.
``signalled``: a program in the sandbox sent the runtime a signal to stop; not every engine can prevent that.
``lost``: it vanished, and the reason is not known."""

FAULTS: dict[Cause, Fault] = {
    "out_of_memory": "policy",
    "out_of_storage": "policy",
    "killed": "infra",
    "crashed": "env",
    "exited": "env",
    "signalled": "policy",
    "lost": "infra",
}


@dataclass(frozen=True, slots=True)
class Exit:
    """How a sandbox ended."""

    code: int
    reason: str
    """Text for people."""
    cause: Cause = "lost"

    @property
    def fault(self) -> Fault:
        """The party at fault; `policy` is the agent."""
        return FAULTS[self.cause]


def classify(code: int, *, out_of_memory: bool = False) -> Exit:
    """Classify the exit status of a sandbox's first process; a negative one is a signal's number.

    ``out_of_memory``: the kernel has killed a process of this sandbox at its memory limit.
    """
    if code == -signal.SIGKILL and out_of_memory:
        return Exit(code, "out of memory: its processes used more than its memory limit", "out_of_memory")
    if code == -signal.SIGKILL:
        return Exit(code, "killed from outside of the sandbox", "killed")
    if code < 0:
        return Exit(code, f"crashed: killed by {_signal(-code)}", "crashed")
    if code == STOPPED_BY_SIGNAL:
        return Exit(code, "a program in the sandbox sent the runtime a signal to stop", "signalled")
    return Exit(code, f"the environment's process ended with exit code {code}", "exited")


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
