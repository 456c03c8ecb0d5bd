"""Make a stopped process run system calls of our choice, before it runs any instruction of its own.

A forked sandbox has foreign code in its memory and, at birth, every capability over its new namespaces. The tracer
stops it before its first instruction and makes it run a `SyscallPlan`, which ends by giving the capabilities up.

Foreign code prepared that memory, so nothing in it is trusted: the page at the instruction pointer, or the stack, may
be shared with another process that changes it meanwhile. The plan and the instructions that work through it therefore
lie in a private mapping that did not exist before. The one call that makes it, and the one that removes it, are forced
at a system-call stop: the kernel has entered the call, and its number and arguments are set by us, whatever instruction
led there.

One thing can still take such a process elsewhere: a restartable sequence (rseq). Where its memory says that the current
instruction is inside of one, the kernel continues at an address from that memory whenever the process was scheduled. So
the first call of all takes the registration away.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from aenv.isolation.kernel.linux import MACHINE
from aenv.isolation.kernel.syscall_plan import BREAKPOINT, RUN_PLAN, SyscallPlan

_SEIZE, _INTERRUPT, _SET_OPTIONS, _DETACH, _CONTINUE, _TO_SYSCALL = 0x4206, 0x4207, 0x4200, 17, 7, 24
_GET_FLOATING, _SET_FLOATING, _GET_MASK, _SET_MASK = 14, 15, 0x420A, 0x420B
_FLOATING, _MASK = 512, 8
"""Sizes of struct user_fpregs_struct and of the kernel's signal mask."""
_GET_REGISTERS, _SET_REGISTERS, _GET_MESSAGE, _GET_RSEQ = 12, 13, 0x4201, 0x420F
_SYSCALL_GOOD, _ON_FORK, _ON_VFORK, _ON_CLONE, _ON_FILTER, _EXIT_KILL = 0x1, 0x2, 0x4, 0x8, 0x80, 0x100000
_FORK_EVENTS = (1, 2, 3)
_FILTER_EVENT = 7
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_WALL = 0x40000000
_REGISTERS = 27  # of struct user_regs_struct, 8 bytes each
_R15, _R14, _RAX, _RDX, _RSI, _RDI, _ORIG_RAX, _RIP = 0, 1, 10, 12, 13, 14, 15, 16
_R10, _R8, _R9 = 7, 9, 8
_NONE = 0xFFFFFFFFFFFFFFFF
_MMAP, _MUNMAP, _CLONE, _PRCTL, _RSEQ = 9, 11, 56, 157, 334
_SET_DUMPABLE = 4
_UNREGISTER = 1
_RSEQ_AREA = struct.Struct("=QIIII")  # address, size, signature, flags, padding
_READ_WRITE_EXECUTE, _PRIVATE_ANONYMOUS = 0x7, 0x22
_PAGE = 4096
_MOST_STOPS = 4096
"""Limit of stops in one run. A plan has some hundred calls; more stops mean signals without end."""

_CODE = RUN_PLAN + BREAKPOINT

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_ulong, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


def supported() -> bool:
    """Return whether this is implemented for this machine's processor."""
    return MACHINE == "x86_64"


def trace_forks(pid: int) -> None:
    """Trace ``pid`` and stop its children before their first instruction. All are killed if this process ends."""
    options = _SYSCALL_GOOD | _ON_FORK | _ON_VFORK | _ON_CLONE | _ON_FILTER | _EXIT_KILL
    _ptrace(_SEIZE, pid, 0, options)


class ProcessEnded(OSError):
    """A traced process has ended, and was reaped. ``status`` is the wait status."""

    def __init__(self, pid: int, status: int) -> None:
        super().__init__(errno.ESRCH, f"process {pid} ended")
        self.pid = pid
        self.status = status


def wait_for_fork(pid: int, flags: int) -> int:
    """Wait until a traced process has forked, by ``clone`` with exactly these flags; return the child's id.

    Both are stopped then. Blocks; the caller sets a time limit.

    Raises:
        ProcessEnded: it ended before.
    """
    while True:
        _, status = os.waitpid(pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise ProcessEnded(pid, status)
        child = forked(pid, status)
        if child is not None:
            return child
        resume_parent(pid, status, flags)


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop a running, untraced process within ``with``. Blocks; the caller sets a time limit.

    Raises:
        ProcessEnded: it ended before.
    """
    _ptrace(_SEIZE, pid, 0, _EXIT_KILL)
    _ptrace(_INTERRUPT, pid, 0, 0)
    _, status = os.waitpid(pid, _WALL)
    if not os.WIFSTOPPED(status):
        raise ProcessEnded(pid, status)
    try:
        yield
    finally:
        is_signal = status >> 16 == 0 and os.WSTOPSIG(status) != signal.SIGTRAP
        with contextlib.suppress(OSError):  # it may have been killed
            _ptrace(_DETACH, pid, 0, os.WSTOPSIG(status) if is_signal else 0)


def release(pid: int) -> None:
    """Detach from a stopped process, and let it run."""
    _ptrace(_DETACH, pid, 0, 0)


def resume_parent(pid: int, status: int, flags: int) -> None:
    """Let a traced parent continue after a stop that was not a fork.

    At a stop by the filter, the ``clone`` with ``flags`` passes; any other call is skipped and returns ENOSYS.
    """
    if status >> 16 == _FILTER_EVENT:
        registers = _registers(pid)
        if registers[_ORIG_RAX] != _CLONE or registers[_RDI] != flags:
            registers[_ORIG_RAX], registers[_RAX] = _NONE, -errno.ENOSYS & _NONE
            _set_registers(pid, registers)
    is_signal = status >> 16 == 0 and os.WSTOPSIG(status) not in (signal.SIGTRAP, _SYSCALL_STOP)
    _ptrace(_CONTINUE, pid, 0, os.WSTOPSIG(status) if is_signal else 0)


def forked(pid: int, status: int) -> int | None:
    """Return the child's id, if ``waitpid`` reported that ``pid`` stopped because it forked."""
    if not os.WIFSTOPPED(status) or status >> 16 not in _FORK_EVENTS:
        return None
    message = ctypes.c_ulong()
    _ptrace(_GET_MESSAGE, pid, 0, ctypes.addressof(message))
    return message.value


@dataclass(frozen=True, slots=True)
class ThreadState:
    """Registers and signal mask of a stopped thread. A thread with a copy of its memory can go on with them."""

    registers: tuple[int, ...]
    floating: bytes
    mask: bytes

    @classmethod
    def at_fork(cls, pid: int) -> ThreadState:
        """Return the state in which a process goes on as the child of the ``clone`` that it is stopped in."""
        registers = _registers(pid)
        registers[_RAX], registers[_ORIG_RAX] = 0, _NONE
        floating, mask = ctypes.create_string_buffer(_FLOATING), ctypes.create_string_buffer(_MASK)
        _ptrace(_GET_FLOATING, pid, 0, ctypes.addressof(floating))
        _ptrace(_GET_MASK, pid, _MASK, ctypes.addressof(mask))
        return cls(tuple(registers), floating.raw, mask.raw)


def stop_at_fork(pid: int, flags: int, go: Callable[[], object]) -> ThreadState:
    """Stop a traced process inside of its next ``clone`` with these flags, which is not made.

    ``go``: called once the process is traced closely enough for the ``clone`` to be noticed. Blocks; the caller sets a
    time limit. `end_fork` lets it go on.

    Raises:
        ProcessEnded: it ended before.
    """
    _ptrace(_INTERRUPT, pid, 0, 0)
    going = False
    while True:
        _, status = os.waitpid(pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise ProcessEnded(pid, status)
        if status >> 16 == _FILTER_EVENT:
            registers = _registers(pid)
            if registers[_ORIG_RAX] == _CLONE and registers[_RDI] == flags:
                return ThreadState.at_fork(pid)
        if not going:
            _ptrace(_SET_OPTIONS, pid, 0, _EXIT_KILL | _ON_FILTER)
        pass_on(pid, status)
        if not going:
            going = True
            go()


def end_fork(pid: int, result: int) -> None:
    """Let a process go on that `stop_at_fork` stopped, as if its ``clone`` had returned ``result``."""
    registers = _registers(pid)
    registers[_ORIG_RAX], registers[_RAX] = _NONE, result & _NONE
    _set_registers(pid, registers)
    _ptrace(_SET_OPTIONS, pid, 0, _EXIT_KILL)
    _ptrace(_CONTINUE, pid, 0, 0)


def pass_on(pid: int, status: int) -> None:
    """Let a traced process go on after a stop, with the signal that stopped it. A call left to us is refused."""
    if status >> 16 == _FILTER_EVENT:
        registers = _registers(pid)
        registers[_ORIG_RAX], registers[_RAX] = _NONE, -errno.ENOSYS & _NONE
        _set_registers(pid, registers)
    is_signal = status >> 16 == 0 and os.WSTOPSIG(status) not in (signal.SIGTRAP, _SYSCALL_STOP)
    _ptrace(_CONTINUE, pid, 0, os.WSTOPSIG(status) if is_signal else 0)


class Stopped:
    """A process that is stopped before its first instruction, inside the ``clone`` that created it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._memory = self._size = 0
        try:
            _wait(pid)
            self._born = _registers(pid)
        except BaseException:  # the caller does not have it yet
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                self.kill()
            raise

    def run(self, plan: SyscallPlan) -> None:
        """Make it run a plan, in a new private mapping.

        Raises:
            OSError: the error of the first call that failed.
        """
        wanted = -(-(plan.size + len(_CODE) + 16) // _PAGE) * _PAGE
        if not self._memory:
            self._forget_rseq()
        if wanted > self._size:
            self._release_memory()
            self._memory = self._call(_MMAP, 0, wanted, _READ_WRITE_EXECUTE, _PRIVATE_ANONYMOUS, _NONE, 0)
            self._size = wanted
        table = self._memory + -(-len(_CODE) // 16) * 16
        encoded = plan.encoded(table)
        _write(self.pid, self._memory, _CODE.ljust(table - self._memory, BREAKPOINT) + encoded.data)
        registers = list(self._born)
        registers[_RIP], registers[_R15], registers[_R14] = self._memory, table, encoded.count
        registers[_ORIG_RAX] = _NONE
        _set_registers(self.pid, registers)
        end = self._memory + len(_CODE)
        for _ in range(_MOST_STOPS):
            _ptrace(_CONTINUE, self.pid, 0, 0)  # no signal is delivered: one could only run foreign code
            status = _wait(self.pid)
            if status >> 16 == 0 and os.WSTOPSIG(status) == signal.SIGTRAP:
                after = _registers(self.pid)
                if after[_RIP] == end:
                    break
        else:
            raise OSError(errno.EINTR, f"process {self.pid} receives signals without end")
        if after[_R14]:
            raise plan.failed(after[_R14], ctypes.c_long(after[_RAX]).value)

    def go_on_as(self, state: ThreadState) -> None:
        """Have it go on, once it is resumed, where another thread was stopped whose memory it has a copy of."""
        self._born = list(state.registers)
        floating, mask = ctypes.create_string_buffer(state.floating), ctypes.create_string_buffer(state.mask)
        _ptrace(_SET_FLOATING, self.pid, 0, ctypes.addressof(floating))
        _ptrace(_SET_MASK, self.pid, _MASK, ctypes.addressof(mask))

    def clone(self, flags: int) -> int:
        """Make it clone itself, with no instruction of its own run; return the id of the child, which is stopped.

        Raises:
            OSError: the kernel refused.
        """
        self._to_syscall_entry(_CLONE)
        registers = _registers(self.pid)
        registers[_ORIG_RAX], registers[_RDI] = _CLONE, flags
        registers[_RSI], registers[_RDX], registers[_R10], registers[_R8] = 0, 0, self._born[_R10], 0
        _set_registers(self.pid, registers)
        child = 0
        for _ in range(_MOST_STOPS):
            _ptrace(_TO_SYSCALL, self.pid, 0, 0)
            status = _wait(self.pid)
            child = forked(self.pid, status) or child
            if status >> 16 == 0 and os.WSTOPSIG(status) == _SYSCALL_STOP:
                break
        if not child:
            number = -ctypes.c_long(_registers(self.pid)[_RAX]).value
            raise OSError(number, f"clone: {os.strerror(number)}")
        return child

    def set_dumpable(self) -> None:
        """Make its memory accessible to tracers of its user, which this process is."""
        self._call(_PRCTL, _SET_DUMPABLE, 1, 0, 0, 0, 0)

    def release_memory(self) -> None:
        """Remove the mapping for plans: another process may share its memory from now on."""
        self._release_memory()

    def resume_traced(self) -> None:
        """Do the same as `resume`, and keep tracing it: it is killed if this process ends."""
        self._leave(self._continue_traced)

    def _continue_traced(self) -> None:
        _ptrace(_SET_OPTIONS, self.pid, 0, _EXIT_KILL)
        _ptrace(_CONTINUE, self.pid, 0, 0)

    def resume(self) -> None:
        """Let it return from its ``clone``, untraced and without our mapping.

        It is released at the entry of the call that removes the mapping. That call returns to the same place as the
        ``clone``, with 0 as the ``clone`` does; the registers of its arguments are undefined after any call.
        """
        self._leave(lambda: release(self.pid))

    def _leave(self, go: Callable[[], None]) -> None:
        registers = list(self._born)
        if self._memory:
            self._to_syscall_entry(_MUNMAP)
            registers[_ORIG_RAX], registers[_RDI], registers[_RSI] = _MUNMAP, self._memory, self._size
        _set_registers(self.pid, registers)
        go()

    def kill(self) -> None:
        """Kill and reap it."""
        os.kill(self.pid, signal.SIGKILL)
        while os.WIFSTOPPED(os.waitpid(self.pid, _WALL)[1]):
            pass

    def _forget_rseq(self) -> None:
        """Unregister its restartable sequences. They stay off in its first thread, and the C library works without."""
        buffer = ctypes.create_string_buffer(_RSEQ_AREA.size)
        try:
            _ptrace(_GET_RSEQ, self.pid, _RSEQ_AREA.size, ctypes.addressof(buffer))
        except OSError as error:
            if error.errno == errno.EIO and not _has_rseq():
                return
            raise
        address, size, signature, *_ = _RSEQ_AREA.unpack(buffer.raw)
        if address:
            self._call(_RSEQ, address, size, _UNREGISTER, signature, 0, 0)

    def _release_memory(self) -> None:
        if self._memory:
            self._call(_MUNMAP, self._memory, self._size, 0, 0, 0, 0)
            self._memory = self._size = 0

    def _call(self, number: int, *arguments: int) -> int:
        """Make it do one system call that needs no memory; return the result.

        The instruction before the instruction pointer is the one that entered ``clone``. If it has been changed, the
        process reaches some other system call, which is replaced, or a signal, which is an error.
        """
        self._to_syscall_entry(number)
        registers = _registers(self.pid)
        registers[_ORIG_RAX] = number
        for place, argument in zip((_RDI, _RSI, _RDX, _R10, _R8, _R9), arguments, strict=True):
            registers[place] = argument
        _set_registers(self.pid, registers)
        self._to_syscall_stop()
        result = ctypes.c_long(_registers(self.pid)[_RAX]).value
        if result < 0:
            raise OSError(-result, f"setting up a forked process: {os.strerror(-result)}")
        return result

    def _to_syscall_entry(self, number: int) -> None:
        registers = list(self._born)
        registers[_RIP] -= 2
        registers[_RAX], registers[_ORIG_RAX] = number, _NONE
        _set_registers(self.pid, registers)
        self._to_syscall_stop()

    def _to_syscall_stop(self) -> None:
        for _ in range(_MOST_STOPS):
            _ptrace(_TO_SYSCALL, self.pid, 0, 0)
            status = _wait(self.pid)
            if status >> 16 == 0 and os.WSTOPSIG(status) == _SYSCALL_STOP:
                return
            if status >> 16 == 0 and os.WSTOPSIG(status) in (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS):
                break
        raise OSError(errno.EFAULT, f"process {self.pid} could not be set up")


@cache
def _has_rseq() -> bool:
    """Return whether the kernel has restartable sequences. Tracers can read the registration since Linux 5.13."""
    return _libc.syscall(ctypes.c_long(_RSEQ), None, ctypes.c_uint(0), 0, 0) == 0 or ctypes.get_errno() != errno.ENOSYS


def _wait(pid: int) -> int:
    _, status = os.waitpid(pid, _WALL)
    if not os.WIFSTOPPED(status):
        raise OSError(errno.ESRCH, f"process {pid} ended while it was being set up")
    return status


def _registers(pid: int) -> list[int]:
    buffer = ctypes.create_string_buffer(_REGISTERS * 8)
    _ptrace(_GET_REGISTERS, pid, 0, ctypes.addressof(buffer))
    return list(struct.unpack(f"={_REGISTERS}Q", buffer.raw))


def _set_registers(pid: int, registers: list[int]) -> None:
    buffer = ctypes.create_string_buffer(struct.pack(f"={_REGISTERS}Q", *registers))
    _ptrace(_SET_REGISTERS, pid, 0, ctypes.addressof(buffer))


def _write(pid: int, address: int, data: bytes) -> None:
    buffer = ctypes.create_string_buffer(data, len(data))
    _move(_libc.process_vm_writev, pid, ctypes.addressof(buffer), address, len(data))


def _move(move: Any, pid: int, ours: int, theirs: int, size: int) -> None:
    here, there = (ctypes.c_ulong * 2)(ours, size), (ctypes.c_ulong * 2)(theirs, size)
    if move(pid, here, ctypes.c_ulong(1), there, ctypes.c_ulong(1), ctypes.c_ulong(0)) != size:
        raise OSError(ctypes.get_errno(), f"the memory of process {pid} cannot be accessed")


def _ptrace(request: int, pid: int, address: int, data: int) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace({request:#x}): {os.strerror(number)}")
