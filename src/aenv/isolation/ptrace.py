"""System calls made in the name of another process, while that process runs no instruction of its own.

A sandbox that has the author's code in its memory must be moved into namespaces of its own, which takes capabilities
that the author's code must never hold. So somebody else does it: the process is stopped at its birth, is made to do
these system calls one by one, has no capability left afterwards, and only then goes on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from typing import Any

from aenv.isolation.linux import MACHINE
from aenv.isolation.plan import DO_ALL, Plan

_SEIZE, _DETACH, _CONTINUE, _POKE = 0x4206, 17, 7, 5
_GET_REGISTERS, _SET_REGISTERS, _GET_MESSAGE = 12, 13, 0x4201
_ON_FORK, _ON_VFORK, _ON_CLONE, _ON_FILTER, _EXIT_KILL = 0x2, 0x4, 0x8, 0x80, 0x100000
_FORKS = (1, 2, 3)
_FILTER = 7
_WALL = 0x40000000
_REGISTERS = 27  # of struct user_regs_struct, 8 bytes each
_R15, _R14, _RAX, _ORIG_RAX, _RIP, _RSP = 0, 1, 10, 15, 16, 19
_RED_ZONE = 512  # below the stack's end is memory that a function may be using
_NONE = 0xFFFFFFFFFFFFFFFF

_CODE = DO_ALL + b"\xcc"  # and then a breakpoint

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_ulong, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


def supported() -> bool:
    """Whether it has been written for this processor."""
    return MACHINE == "x86_64"


def watch_forks(pid: int) -> None:
    """Have whatever ``pid`` forks stop at birth. It dies with this process."""
    _ptrace(_SEIZE, pid, 0, _ON_FORK | _ON_VFORK | _ON_CLONE | _ON_FILTER | _EXIT_KILL)


def release(pid: int) -> None:
    """Let a stopped process go on, unwatched."""
    _ptrace(_DETACH, pid, 0, 0)


def carry_on(pid: int, status: int) -> None:
    """Let a watched process that stopped for something else go on, with the signal that it stopped for, if any."""
    is_signal = status >> 16 == 0 and os.WSTOPSIG(status) != signal.SIGTRAP
    _ptrace(_CONTINUE, pid, 0, os.WSTOPSIG(status) if is_signal else 0)


def forked(pid: int, status: int) -> int | None:
    """The new process, when ``waitpid`` says that ``pid`` stopped for having forked one."""
    if not os.WIFSTOPPED(status) or status >> 16 not in _FORKS:
        return None
    message = ctypes.c_ulong()
    _ptrace(_GET_MESSAGE, pid, 0, ctypes.addressof(message))
    return message.value


class Stopped:
    """A process that was stopped at birth, within the fork that made it."""

    def __init__(self, pid: int, *, waited: bool = False) -> None:
        self.pid = pid
        if not waited:
            _wait(pid)
        self._born = _registers(pid)

    def do(self, plan: Plan) -> None:
        """Make it do these system calls.

        Raises:
            OSError: what the first that failed came to.
        """
        # The plan lies below what a function may be using of the stack, the code where it was about to go on.
        at = (self._born[_RSP] - _RED_ZONE - plan.size) & ~0xF
        written = plan.written(at)
        _write(self.pid, at, written.data)
        place = self._born[_RIP]
        before = _read(self.pid, place, len(_CODE))
        _write_code(self.pid, place, _CODE)
        registers = list(self._born)
        registers[_R15], registers[_R14], registers[_ORIG_RAX] = at, written.count, _NONE
        _set_registers(self.pid, registers)
        _ptrace(_CONTINUE, self.pid, 0, 0)
        while _wait(self.pid) >> 16 == _FILTER:  # where the filter asks whether it may: it may
            _ptrace(_CONTINUE, self.pid, 0, 0)
        _write_code(self.pid, place, before)
        after = _registers(self.pid)
        if after[_R14]:
            raise plan.failed(after[_R14], ctypes.c_long(after[_RAX]).value)

    def go_on(self) -> None:
        """Let it return from the fork that made it."""
        _set_registers(self.pid, self._born)
        release(self.pid)

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, _WALL)


def _wait(pid: int) -> int:
    _, status = os.waitpid(pid, _WALL)
    if not os.WIFSTOPPED(status):
        raise OSError(0, f"process {pid} ended while it was being moved")
    return status


def _registers(pid: int) -> list[int]:
    buffer = ctypes.create_string_buffer(_REGISTERS * 8)
    _ptrace(_GET_REGISTERS, pid, 0, ctypes.addressof(buffer))
    return list(struct.unpack(f"={_REGISTERS}Q", buffer.raw))


def _set_registers(pid: int, registers: list[int]) -> None:
    buffer = ctypes.create_string_buffer(struct.pack(f"={_REGISTERS}Q", *registers))
    _ptrace(_SET_REGISTERS, pid, 0, ctypes.addressof(buffer))


def _read(pid: int, address: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    _move(_libc.process_vm_readv, pid, ctypes.addressof(buffer), address, size)
    return buffer.raw


def _write(pid: int, address: int, data: bytes) -> None:
    buffer = ctypes.create_string_buffer(data, len(data))
    _move(_libc.process_vm_writev, pid, ctypes.addressof(buffer), address, len(data))


def _move(move: Any, pid: int, ours: int, theirs: int, size: int) -> None:
    here, there = (ctypes.c_ulong * 2)(ours, size), (ctypes.c_ulong * 2)(theirs, size)
    if move(pid, here, ctypes.c_ulong(1), there, ctypes.c_ulong(1), ctypes.c_ulong(0)) != size:
        raise OSError(ctypes.get_errno(), f"the memory of process {pid} cannot be reached")


def _write_code(pid: int, address: int, data: bytes) -> None:
    """In whole words: where the process itself may not write."""
    for offset in range(0, len(data), 8):
        _ptrace(_POKE, pid, address + offset, int.from_bytes(data[offset : offset + 8], "little"))


def _ptrace(request: int, pid: int, address: int, data: int) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace({request:#x}): {os.strerror(number)}")
