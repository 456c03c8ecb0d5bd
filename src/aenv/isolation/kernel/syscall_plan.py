"""System calls as data, to run in this process or in a stopped one.

A plan lists the system calls that set up new namespaces. Encoded as a table, it is run by the few instructions of
`RUN_PLAN`, wherever they are put: in a stopped child (`ptrace.Stopped.run`) no foreign instruction runs, and in a
sandbox that sets up its namespaces itself (`PlanTable.run`) fewer pages are written to. A new process copies every page
that it writes to, and Python writes wherever it goes.

The instructions are for x86-64; elsewhere Python makes the calls. Their source is run_plan.S in this folder.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from aenv.isolation.kernel import linux

RUN_PLAN = bytes.fromhex(
    "498b07 498b7f08 498b7710 498b5718 4d8b5720 4d8b4728 0f05 49894730 4885c0 7906 493b4738 7517"
    "498b4f40 488901 498b4f48 488901 4983c750 49ffce 75c1"
)
"""run_plan.S, assembled, with the next three; a test assembles it again and compares."""
BREAKPOINT = bytes.fromhex("cc")
_ENTER = bytes.fromhex("4155 4156 4157 4989ff 4989f6 4989d5")
_LEAVE = bytes.fromhex("4d897500 49894508 415f 415e 415d c3")
FUNCTION = _ENTER + RUN_PLAN + _LEAVE
"""``void run(void *table, size_t count, int64_t state[2])``"""
_STATE = struct.Struct("=qq")
_ENTRY = struct.Struct("=10Q")
_ARGUMENTS, _RESULT = 5, 6 * 8
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an earlier call of the plan, as an argument of a later one."""

    call: int


@dataclass(frozen=True, slots=True)
class Later:
    """A number that is set before the plan runs, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """Memory that an argument points at, and pointers within it: offsets, and what each points at."""

    data: bytes
    pointers: tuple[tuple[int, bytes], ...] = ()


Argument = int | str | MemoryBlock | Outcome | Later


@dataclass(frozen=True, slots=True)
class _Call:
    what: str
    number: int
    arguments: tuple[Argument, ...]
    tolerated: int


@dataclass
class EncodedPlan:
    """A plan as a table for memory at one address."""

    data: bytes
    count: int
    later: dict[str, list[int]] = field(default_factory=dict)
    """Offsets of the words for `Later` arguments, by name."""


class PlanTable:
    """An encoded plan in this process's memory, and so in that of its forks."""

    def __init__(self, plan: SyscallPlan) -> None:
        self.plan = plan
        self._memory = ctypes.create_string_buffer(plan.size)
        self.address = ctypes.addressof(self._memory)
        self._encoded = plan.encoded(self.address)
        self._state = ctypes.create_string_buffer(_STATE.size)
        ctypes.memmove(self._memory, self._encoded.data, plan.size)
        if linux.MACHINE == "x86_64":
            _instructions()

    @property
    def count(self) -> int:
        """The number of calls."""
        return self._encoded.count

    def set(self, name: str, value: int) -> None:
        """Set a `Later` argument."""
        for offset in self._encoded.later.get(name, ()):
            struct.pack_into("=Q", self._memory, offset, value)

    def result(self, outcome: Outcome) -> int:
        """Return the result of a call."""
        return int(struct.unpack_from("=q", self._memory, outcome.call * _ENTRY.size + _RESULT)[0])

    def run(self) -> None:
        """Make the calls in this process.

        Raises:
            OSError: a call failed.
        """
        if linux.MACHINE != "x86_64":
            for call, result in enumerate(self.plan.run()):
                struct.pack_into("=q", self._memory, call * _ENTRY.size + _RESULT, result)
            return
        _instructions()(self.address, self.count, ctypes.addressof(self._state))
        left, result = _STATE.unpack_from(self._state)
        if left:
            raise self.plan.failed(left, result)


@cache
def _instructions() -> Callable[[int, int, int], None]:
    return ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p)(linux.executable(FUNCTION))


class SyscallPlan:
    """System calls to make in this order, until one fails."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._folders: set[str] = set()
        self._encoded: dict[int, EncodedPlan] = {}

    def copy(self) -> SyscallPlan:
        """Return a plan that begins with the same calls."""
        other = SyscallPlan()
        other._calls, other._folders = list(self._calls), set(self._folders)
        return other

    def do(self, name: str, *arguments: Argument, what: str = "", tolerated: int = 0) -> Outcome:
        """Add a call. Strings and blocks are passed by address. ``tolerated``: an errno that is no failure."""
        self._encoded.clear()
        self._calls.append(_Call(what or name, linux.number(name), arguments, tolerated))
        return Outcome(len(self._calls) - 1)

    def mount(self, source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
        """Add a mount."""
        self.do("mount", source, target, kind or 0, flags, data or 0, what=f"mount({kind or 'bind'}, {target})")

    def bind(self, source: str, target: str) -> None:
        """Add a recursive bind mount."""
        self.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)

    def folder(self, path: str, *, mode: int | None = None) -> None:
        """Add a folder, with its parents; they may exist already."""
        parts = path.split("/")
        for place in ("/".join(parts[:length]) for length in range(2, len(parts) + 1)):
            if place not in self._folders:
                self._folders.add(place)
                self.do("mkdirat", linux.HERE, place, 0o777, what=f"mkdir({place})", tolerated=errno.EEXIST)
        if mode is not None:
            self.do("fchmodat", linux.HERE, path, mode, what=f"chmod({path})")

    def write(self, path: str, text: str) -> None:
        """Add writing text to an existing file."""
        file = self.do("openat", linux.HERE, path, os.O_WRONLY | os.O_CLOEXEC, what=f"open({path})")
        self.do("write", file, text, len(text.encode()), what=f"write({path})")
        self.do("close", file)

    def run(self, **later: int) -> list[int]:
        """Make the calls in this process, from Python; return their results.

        Raises:
            OSError: a call failed.
        """
        results: list[int] = []
        for call in self._calls:
            buffers: list[ctypes.Array[ctypes.c_char]] = []
            words = [_word_here(argument, results, later, buffers) for argument in call.arguments]
            result = linux.system_call(call.number, *words)
            if result < 0 and result != -call.tolerated:
                raise OSError(-result, f"{call.what}: {os.strerror(-result)}")
            results.append(result)
        return results

    @property
    def size(self) -> int:
        """Size of the encoded plan, in bytes."""
        return len(self.encoded(0).data)

    def encoded(self, address: int) -> EncodedPlan:
        """Return the table that `RUN_PLAN` takes, for memory at ``address``."""
        known = self._encoded.get(address)
        if known is None:
            known = self._encoded[address] = self._encode(address)
        return known

    def _encode(self, address: int) -> EncodedPlan:
        end = address + _ENTRY.size * len(self._calls)
        data = bytearray(8)  # the first word gets results that no call needs
        later: dict[str, list[int]] = {}
        wanted: dict[int, list[int]] = {}
        entries = []
        for place, call in enumerate(self._calls):
            words = []
            for number, argument in enumerate(call.arguments):
                at = place * _ENTRY.size + 8 * (number + 1)
                if isinstance(argument, Outcome):
                    wanted.setdefault(argument.call, []).append(address + at)
                elif isinstance(argument, Later):
                    later.setdefault(argument.name, []).append(at)
                words.append(_word_at(argument, end, data) & _WORD)
            words += [0] * (_ARGUMENTS - len(words))
            entries.append([call.number, *words, 0, -call.tolerated & _WORD])
        packed = []
        for place, entry in enumerate(entries):
            places = [*wanted.get(place, ()), end, end][:2]
            packed.append(_ENTRY.pack(*entry, *places))
        return EncodedPlan(b"".join(packed) + bytes(data), len(entries), later)

    def failed(self, left: int, result: int) -> OSError:
        """Return the error of a run that ended with this result and ``left`` calls not made."""
        return OSError(-result, f"{self._calls[-left].what}: {os.strerror(-result)}")


def _word_here(
    argument: Argument, results: list[int], later: dict[str, int], buffers: list[ctypes.Array[ctypes.c_char]]
) -> int:
    match argument:
        case Outcome(call):
            return results[call]
        case Later(name):
            return later[name]
        case int():
            return argument
    block = MemoryBlock(argument.encode() + b"\0") if isinstance(argument, str) else argument
    data = bytearray(block.data)
    for offset, target in block.pointers:
        buffers.append(ctypes.create_string_buffer(target))
        struct.pack_into("=Q", data, offset, ctypes.addressof(buffers[-1]))
    buffers.append(ctypes.create_string_buffer(bytes(data), len(data)))
    return ctypes.addressof(buffers[-1])


def _word_at(argument: Argument, start: int, data: bytearray) -> int:
    """Return the word for an argument; append what it points at to ``data``, which will be at ``start``."""
    match argument:
        case Outcome() | Later():
            return 0
        case int():
            return argument
    block = MemoryBlock(argument.encode() + b"\0") if isinstance(argument, str) else argument
    own = bytearray(block.data)
    for offset, target in block.pointers:
        struct.pack_into("=Q", own, offset, _append(data, start, target))
    return _append(data, start, bytes(own))


def _append(data: bytearray, start: int, more: bytes) -> int:
    data += bytes(-len(data) % 8)
    at = start + len(data)
    data += more
    return at
