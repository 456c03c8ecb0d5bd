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

from aenv.isolation.linux import MACHINE

_SEIZE, _DETACH, _CONTINUE, _STEP, _POKE = 0x4206, 17, 7, 9, 5
_GET_REGISTERS, _SET_REGISTERS, _GET_MESSAGE = 12, 13, 0x4201
_ON_FORK, _ON_VFORK, _ON_CLONE, _ON_FILTER, _EXIT_KILL = 0x2, 0x4, 0x8, 0x80, 0x100000
_FORKS = (1, 2, 3)
_FILTER = 7
_WALL = 0x40000000
_CLONE = 56  # what fork() is, in the GNU C library
_SYSCALL_SIZE = 2  # bytes of the instruction
_REGISTERS = 27  # of struct user_regs_struct, 8 bytes each
_R10, _R9, _R8, _RAX, _RDX, _RSI, _RDI, _ORIG_RAX, _RIP, _RSP = 7, 8, 9, 10, 12, 13, 14, 15, 16, 19
_ARGUMENTS = (_RDI, _RSI, _RDX, _R10, _R8, _R9)
_RED_ZONE = 512  # below the stack's end is memory that a function may be using
_NONE = 0xFFFFFFFFFFFFFFFF

# for (ebx = 0; prctl(PR_CAPBSET_DROP, ebx, 0, 0, 0) == 0; ebx++); then a breakpoint. Padded to whole words.
_DROP_ALL = bytes.fromhex(
    "bb00000000"  # mov ebx, 0
    "b89d000000"  # mov eax, prctl
    "bf18000000"  # mov edi, PR_CAPBSET_DROP
    "89de 31d2 4531d2 4531c0"  # mov esi, ebx; and nothing in edx, r10d, r8d
    "0f05"  # syscall
    "ffc3 85c0 74e4"  # inc ebx; test eax, eax; jz to the second line
    "cc cccccccccccc"  # int3
)

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
        if self._born[_ORIG_RAX] != _CLONE:
            self.kill()
            raise OSError(0, f"it was not made by clone but by system call {self._born[_ORIG_RAX]}")

    def call(self, number: int, *arguments: int) -> int:
        """Make it do a system call.

        Raises:
            OSError: what the call came to.
        """
        self._enter(number, arguments)
        while True:
            _ptrace(_STEP, self.pid, 0, 0)
            if _wait(self.pid) >> 16 != _FILTER:  # where the filter asks whether it may: it may
                break
        result = ctypes.c_long(_registers(self.pid)[_RAX]).value
        if -4096 < result < 0:
            raise OSError(-result, f"system call {number}: {os.strerror(-result)}")
        return result

    def fork_again(self, namespaces: int) -> Stopped:
        """A second child in place of this one, which ends; that one has further namespaces of its own."""
        flags, *others = (self._born[register] for register in _ARGUMENTS)
        self._enter(_CLONE, (flags | namespaces, *others))
        while True:
            _ptrace(_CONTINUE, self.pid, 0, 0)
            status = _wait(self.pid)
            if status >> 16 != _FILTER:
                break
        child = forked(self.pid, status)
        if child is None:
            raise OSError(0, f"a stopped process did not fork: {_registers(self.pid)[_RAX]:#x}")
        self.kill()
        return Stopped(child)

    def scratch(self, data: bytes) -> int:
        """Put a few bytes into its memory, where it has nothing; the address."""
        address = (self._born[_RSP] - _RED_ZONE) & ~0xF
        _write(self.pid, address, data)
        return address

    def drop_bounding_set(self) -> None:
        """Make it give up every capability that a program could bring it back: forty calls, so it does them alone."""
        place = self._born[_RIP]
        before = _read(self.pid, place, len(_DROP_ALL))
        _write(self.pid, place, _DROP_ALL)
        registers = list(self._born)
        registers[_ORIG_RAX] = _NONE
        _set_registers(self.pid, registers)
        _ptrace(_CONTINUE, self.pid, 0, 0)
        _wait(self.pid)
        _write(self.pid, place, before)

    def go_on(self) -> None:
        """Let it return from the fork that made it."""
        _set_registers(self.pid, self._born)
        release(self.pid)

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, _WALL)

    def _enter(self, number: int, arguments: tuple[int, ...]) -> None:
        registers = list(self._born)
        registers[_RAX] = number
        registers[_ORIG_RAX] = _NONE  # nothing to restart
        registers[_RIP] -= _SYSCALL_SIZE  # it has just returned from one, so there is the instruction
        for register, value in zip(_ARGUMENTS, arguments, strict=False):
            registers[register] = value & _NONE
        _set_registers(self.pid, registers)


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
    ours = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), size)
    theirs = (ctypes.c_ulong * 2)(address, size)
    if _libc.process_vm_readv(pid, ours, ctypes.c_ulong(1), theirs, ctypes.c_ulong(1), ctypes.c_ulong(0)) != size:
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return buffer.raw


def _write(pid: int, address: int, data: bytes) -> None:
    """In whole words; also where the process itself may not write."""
    for offset in range(0, len(data), 8):
        _ptrace(_POKE, pid, address + offset, int.from_bytes(data[offset : offset + 8], "little"))


def _ptrace(request: int, pid: int, address: int, data: int) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace({request:#x}): {os.strerror(number)}")
