"""Somebody who furnishes namespaces: a process that shares the zygote's memory and works through a `Plan`.

To enter a user namespace is for good, so it takes a new process each time. This one is not a fork: it has no Python, no
stack and no memory of its own, only the few instructions below. Making and ending it costs a tenth of what a fork does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import struct
from collections.abc import Callable
from functools import cache

from aenv.isolation import linux
from aenv.isolation.plan import DO_ALL, Later, Outcome, Plan, Table

GO = "go"
"""Begins a plan that a builder is to wait with until it is told to go on."""
WALL = 0x40000000
"""For ``waitpid``: also children that send no signal at their end. Builders do not: it would wake who has no time."""
WORK_SECONDS = 2
"""That one is given to finish what it is at: it takes half a thousandth."""
_FLAGS = 0x100 | 0x400 | 0x1000  # CLONE_VM, CLONE_FILES, CLONE_PIDFD
_CODE = bytes.fromhex(
    "4155 4156 4157"  # what belongs to the caller
    "4989ff 4989f6 4989d5"  # table, how many calls, state
    f"bf{_FLAGS.to_bytes(4, 'little').hex()} 31f6 498d5518 4d31d2 4d31c0 b838000000 0f05"  # clone
    "85c0 7407"
    "415f 415e 415d c3"  # in the zygote: the process id
)  # and in the builder:
_CODE += DO_ALL + bytes.fromhex(
    "4d897500 49894508"  # how many are left, and what the last one came to
    "b801000000 498b7d10 498d7520 ba08000000 0f05"  # say that it is done
    "b822000000 0f05 ebf7"  # be there until killed
)
_STATE = struct.Struct("=qqQIIQ")
"""How many calls are left, what the last one came to, whom to tell, its own descriptor; the word that tells."""


class Builder:
    """One at a time works with this memory. Its descriptors are the zygote's, in both directions."""

    def __init__(self, plan: Plan, *, door: Outcome | None = None) -> None:
        """``door``: see `network.settle`."""
        self._table = Table(plan)
        self.door = door
        self.done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when it has finished."""
        self._go = os.eventfd(0, os.EFD_CLOEXEC)
        self._state = ctypes.create_string_buffer(_STATE.size)
        self.pid = 0
        self.pidfd = -1
        """What others enter its namespaces by; none when nobody is there."""
        self._at_work = False

    def come(self) -> None:
        """Be there, and wait. The one before may still be ending, but touches its memory no more."""
        _STATE.pack_into(self._state, 0, -1, 0, self.done, 0, 0, 1)
        self._table.set(GO, self._go)
        with linux.undisturbed():  # a handler would need a stack
            self.pid = _launch()(self._table.address, self._table.count, ctypes.addressof(self._state))
        if self.pid < 0:
            raise OSError(-self.pid, f"clone: {os.strerror(-self.pid)}")
        self.pidfd = _STATE.unpack_from(self._state)[3]

    def go(self, **later: int) -> None:
        """Build, with what could not be known before."""
        for name, value in later.items():
            self._table.set(name, value)
        self._at_work = True
        os.eventfd_write(self._go, 1)

    def check(self) -> None:
        """Once it is done.

        Raises:
            OSError: it could not do it.
        """
        os.eventfd_read(self.done)
        self._at_work = False
        left, result, *_ = _STATE.unpack_from(self._state)
        if left:
            raise self._table.plan.failed(left, result)

    def result(self, outcome: Outcome) -> int:
        """What one of its calls came to."""
        return self._table.result(outcome)

    def leave(self) -> int:
        """Let it end, and somebody wait for that; which process it was."""
        with contextlib.suppress(ProcessLookupError):  # somebody else has killed it
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)  # it never comes to its next instruction: see `come`
        os.close(self.pidfd)
        pid, self.pid, self.pidfd = self.pid, 0, -1
        return pid

    def close(self) -> None:
        """Have it end, with nobody to come after it."""
        if self.pidfd >= 0:
            if self._at_work:  # what it has opened it closes itself: its descriptors are ours
                work = select.poll()
                work.register(self.done, select.POLLIN)
                work.register(self.pidfd, select.POLLIN)
                work.poll(WORK_SECONDS * 1000)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.leave(), WALL)
        os.close(self.done)
        os.close(self._go)


def waiting() -> Plan:
    """A plan for a builder to begin with."""
    plan = Plan()
    plan.do("read", Later(GO), "12345678", 8, what="waiting")
    return plan


@cache
def _launch() -> Callable[[int, int, int], int]:
    """Starts one, given its table, how many calls are in it, and its state."""
    return ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p)(linux.executable(_CODE))
