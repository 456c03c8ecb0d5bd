"""System calls as data: for this process to make, or for one that runs nothing but them.

A plan says what new namespaces need. Written down, it is what the few instructions of `DO_ALL` work through, wherever
they are put. A sandbox that furnishes its namespaces itself does so, too (`PlanTable.run`): a new process copies
every page that it writes to, and Python writes wherever it goes.
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

DO_ALL = bytes.fromhex(
    "498b07 498b7f08 498b7710 498b5718 4d8b5720 4d8b4728"  # number and five arguments, from where r15 points to
    "0f05 49894730"  # the system call; what it came to
    "4885c0 7906 493b4738 7517"  # to the end when it failed, but for an error that does not matter
    "498b4f40 488901 498b4f48 488901"  # where later calls want to know of it
    "4983c750 49ffce 75c1"  # to the next one, until r14 is 0
)
_HERE = (
    bytes.fromhex("4155 4156 4157 4989ff 4989f6 4989d5")  # what belongs to the caller; table, how many calls, state
    + DO_ALL
    + bytes.fromhex("4d897500 49894508 415f 415e 415d c3")  # how many are left, and what the last one came to
)
_STATE = struct.Struct("=qq")
_ENTRY = struct.Struct("=10Q")
_ARGUMENTS, _RESULT = 5, 6 * 8
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an earlier call will have come to."""

    call: int


@dataclass(frozen=True, slots=True)
class Later:
    """A number that is not known yet."""

    name: str


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """Memory to point at, and pointers within it, by their offset."""

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
    """A plan for one address."""

    data: bytes
    count: int
    later: dict[str, list[int]] = field(default_factory=dict)
    """Where numbers belong that were not known."""


class PlanTable:
    """A plan in this process's memory, and so in that of its forks."""

    def __init__(self, plan: SyscallPlan) -> None:
        self.plan = plan
        self._memory = ctypes.create_string_buffer(plan.size)
        self.address = ctypes.addressof(self._memory)
        self._written = plan.written(self.address)
        self._state = ctypes.create_string_buffer(_STATE.size)
        ctypes.memmove(self._memory, self._written.data, plan.size)
        if linux.MACHINE == "x86_64":
            _instructions()

    @property
    def count(self) -> int:
        """How many calls these are."""
        return self._written.count

    def set(self, name: str, value: int) -> None:
        """Say a number that was not known."""
        for offset in self._written.later.get(name, ()):
            struct.pack_into("=Q", self._memory, offset, value)

    def result(self, outcome: Outcome) -> int:
        """What a call came to."""
        return int(struct.unpack_from("=q", self._memory, outcome.call * _ENTRY.size + _RESULT)[0])

    def run(self) -> None:
        """Make the calls in this process.

        Raises:
            OSError: one failed.
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
    return ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p)(linux.executable(_HERE))


class SyscallPlan:
    """Calls to make, in this order, until one fails."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._folders: set[str] = set()
        self._written: dict[int, EncodedPlan] = {}

    def do(self, name: str, *arguments: Argument, what: str = "", tolerated: int = 0) -> Outcome:
        """One call. Strings are pointed at; ``tolerated`` is an error that does not matter."""
        self._written.clear()
        self._calls.append(_Call(what or name, linux.number(name), arguments, tolerated))
        return Outcome(len(self._calls) - 1)

    def mount(self, source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
        """Mount something."""
        self.do("mount", source, target, kind or 0, flags, data or 0, what=f"mount({kind or 'bind'}, {target})")

    def bind(self, source: str, target: str) -> None:
        """Show a file or a tree, with all that is mounted in it, at a second place."""
        self.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)

    def folder(self, path: str, *, mode: int | None = None) -> None:
        """One that may be there, with all that it is in."""
        parts = path.split("/")
        for place in ("/".join(parts[:length]) for length in range(2, len(parts) + 1)):
            if place not in self._folders:
                self._folders.add(place)
                self.do("mkdirat", linux.HERE, place, 0o777, what=f"mkdir({place})", tolerated=errno.EEXIST)
        if mode is not None:
            self.do("fchmodat", linux.HERE, path, mode, what=f"chmod({path})")

    def write(self, path: str, text: str) -> None:
        """Into a file that is there."""
        file = self.do("openat", linux.HERE, path, os.O_WRONLY | os.O_CLOEXEC, what=f"open({path})")
        self.do("write", file, text, len(text.encode()), what=f"write({path})")
        self.do("close", file)

    def run(self, **later: int) -> list[int]:
        """Make the calls in this process; what each came to.

        Raises:
            OSError: one failed.
        """
        results: list[int] = []
        for call in self._calls:
            kept: list[ctypes.Array[ctypes.c_char]] = []
            words = [_here(argument, results, later, kept) for argument in call.arguments]
            result = linux.system_call(call.number, *words)
            if result < 0 and result != -call.tolerated:
                raise OSError(-result, f"{call.what}: {os.strerror(-result)}")
            results.append(result)
        return results

    @property
    def size(self) -> int:
        """Bytes that it has when it is written down."""
        return len(self.written(0).data)

    def written(self, address: int) -> EncodedPlan:
        """The calls as `DO_ALL` takes them, for memory at ``address``."""
        known = self._written.get(address)
        if known is None:
            known = self._written[address] = self._write_down(address)
        return known

    def _write_down(self, address: int) -> EncodedPlan:
        end = address + _ENTRY.size * len(self._calls)
        data = bytearray(8)  # the first word: where nobody looks
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
                words.append(_there(argument, end, data) & _WORD)
            words += [0] * (_ARGUMENTS - len(words))
            entries.append([call.number, *words, 0, -call.tolerated & _WORD])
        packed = []
        for place, entry in enumerate(entries):
            places = [*wanted.get(place, ()), end, end][:2]
            packed.append(_ENTRY.pack(*entry, *places))
        return EncodedPlan(b"".join(packed) + bytes(data), len(entries), later)

    def failed(self, left: int, result: int) -> OSError:
        """The error that it ended with, when ``left`` calls were left to do."""
        return OSError(-result, f"{self._calls[-left].what}: {os.strerror(-result)}")


def _here(
    argument: Argument, results: list[int], later: dict[str, int], kept: list[ctypes.Array[ctypes.c_char]]
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
        kept.append(ctypes.create_string_buffer(target))
        struct.pack_into("=Q", data, offset, ctypes.addressof(kept[-1]))
    kept.append(ctypes.create_string_buffer(bytes(data), len(data)))
    return ctypes.addressof(kept[-1])


def _there(argument: Argument, start: int, data: bytearray) -> int:
    """The word for an argument; what it points at is appended to ``data``, which lies at ``start``."""
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
