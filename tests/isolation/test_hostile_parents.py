"""A preloaded parent that prepares its forks for an attack: each gains nothing while it still has its rights."""

from __future__ import annotations

import resource
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aenv.isolation.forking import preloaded
from aenv.isolation.kernel import ptrace
from aenv.isolation.limits.cgroups import counts_processes_per_namespace
from tests.isolation.conftest import make_project
from tests.isolation.host import Platform, limited_by, open_instances

pytestmark = pytest.mark.skipif(not ptrace.supported(), reason="there are no preloaded parents on this processor")

COMMON = r'''
import ctypes, os, signal, socket, struct, sys, threading, time
from aenv import register_tool
from aenv.isolation.forking import preloaded
from aenv.isolation.kernel import linux, ptrace

LIBC = ctypes.CDLL(None, use_errno=True)
LOADED_BY = os.getpid()
NOTES = {}


def load_filter(action, *calls):
    """A system-call filter that answers these calls itself; each is a number, or a number and its first argument."""
    code = [struct.pack("=HBBI", 0x20, 0, 0, 0)]
    for number, *first in calls:
        if first:
            code += [struct.pack("=HBBI", 0x15, 0, 4, number), struct.pack("=HBBI", 0x20, 0, 0, 16),
                     struct.pack("=HBBI", 0x15, 0, 1, first[0]), struct.pack("=HBBI", 6, 0, 0, action),
                     struct.pack("=HBBI", 0x20, 0, 0, 0)]
        else:
            code += [struct.pack("=HBBI", 0x15, 0, 1, number), struct.pack("=HBBI", 6, 0, 0, action)]
    code.append(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
    linux.load_seccomp(b"".join(code))


def before_each_fork(act):
    """Run this in the preloaded parent, right before each of its forks."""
    fork = linux.fork_with

    def forks(flags, *, notify=True):
        act()
        return fork(flags, notify=notify)

    linux.fork_with = forks


@register_tool
def about() -> dict:
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {
        "loaded_by": LOADED_BY, "pid": os.getpid(), "notes": NOTES,
        "rights": [status[name].strip() for name in ("CapEff", "CapPrm", "CapBnd")],
        "locked": status["Seccomp"].strip(), "input": os.fstat(0).st_rdev == os.makedev(1, 3),
        "files": sorted(os.listdir("/tmp")),
    }
'''
CAPSET, PRCTL, MOUNT, CLOSE_RANGE = 126, 157, 165, 436
FILTERS = {
    "answers capset with success": (0x00050000, [(CAPSET,), (PRCTL, 24)]),
    "turns capset into a signal": (0x00030000, [(CAPSET,), (PRCTL, 24)]),
    "answers mount with success": (0x00050000, [(MOUNT,)]),
    "says that there is no close_range": (0x00050026, [(CLOSE_RANGE,)]),
    "asks somebody else about capset": (0x7FC00000, [(CAPSET,)]),
}


def is_fork(told: dict[str, Any]) -> bool:
    return bool(told["loaded_by"] != 1)


def instances(tmp_path: Path, code: str, count: int = 6, *, forked: bool = True) -> list[dict[str, Any]]:
    """What instances of an environment with this code say, all of which are there at the same time.

    ``forked``: open more until the last one is a fork of a preloaded parent.
    """
    project = make_project(tmp_path, COMMON + code, name="hostile")
    with ExitStack() as open_ones:
        envs = open_instances(open_ones, project, count, is_fork if forked else lambda told: True)
        answers = [env.call_tool("about", {}, 60) for env in envs]
    assert not [answer.text for answer in answers if answer.is_error]
    told: list[dict[str, Any]] = [answer.data for answer in answers]
    for one in told:
        assert one["pid"] == 1
        assert one["rights"] == ["0" * 16] * 3
        assert one["locked"] == "2"
    return told


@pytest.mark.long
@pytest.mark.attack("preloaded parents")
@pytest.mark.parametrize("what", FILTERS)
def test_no_fork_is_made_of_a_parent_with_a_filter_of_its_own(tmp_path: Path, platform: Platform, what: str) -> None:
    """Its forks would inherit the filter, and would only seem to give up their rights."""
    action, calls = FILTERS[what]
    told = instances(tmp_path, f"if os.getpid() != 1:\n    load_filter({action:#x}, *{calls!r})\n", forked=False)
    assert [one["loaded_by"] for one in told] == [1] * len(told)


@pytest.mark.attack("preloaded parents")
def test_an_instance_may_load_a_filter_for_itself(tmp_path: Path, platform: Platform) -> None:
    code = """
@register_tool
def lock() -> int:
    load_filter(0x00050000 | 77, (39,))
    return LIBC.getpid()
"""
    project = make_project(tmp_path, COMMON + code, name="locks")
    with ExitStack() as open_ones:
        envs = open_instances(open_ones, project, 6, is_fork)
        assert [env.call_tool("lock", {}, 60).data for env in envs] == [-77] * len(envs)


ORPHAN = """
if os.getpid() != 1:
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.waitpid(middle, 0)
"""


@pytest.mark.attack("preloaded parents")
def test_no_fork_is_made_while_an_orphan_of_the_parent_runs(tmp_path: Path, platform: Platform) -> None:
    """It is not a child of the parent any more, but could open the memory of a fork that has its rights."""
    told = instances(tmp_path, ORPHAN, forked=False)
    assert [one["loaded_by"] for one in told] == [1] * len(told)


MAILBOX = """
KEPT = []


def steal():
    if KEPT:
        try:
            data, fds, _, _ = socket.recv_fds(socket.socket(fileno=os.dup(KEPT[0])), 100, 16, socket.MSG_DONTWAIT)
            NOTES["stolen"] = [os.readlink(f"/proc/self/fd/{fd}") for fd in fds]
        except OSError as error:
            NOTES["refused"] = str(error)
        return
    try:
        KEPT.append(os.dup(200))
    except OSError:
        KEPT.append(-1)
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.dup2(theirs.detach(), 200)
    ours.detach()


before_each_fork(steal)
"""


@pytest.mark.attack("preloaded parents")
def test_a_parent_cannot_read_what_its_forks_are_sent(tmp_path: Path, platform: Platform) -> None:
    """An instance's token and variables, and descriptors of its control group, which another tenant may have later."""
    told = instances(tmp_path, MAILBOX)
    assert not [one["notes"] for one in told if "stolen" in one["notes"]]


INPUT = """
before_each_fork(lambda: os.dup2(socket.socketpair()[0].detach(), 0))
"""


@pytest.mark.attack("preloaded parents")
def test_forks_keep_no_descriptor_of_the_parent(tmp_path: Path, platform: Platform) -> None:
    told = instances(tmp_path, INPUT)
    assert all(one["input"] for one in told)


RSEQ = r"""
ABORT, RANGE, CODE, DATA, SIGNATURE = 0x10000, 0x20000, 0x30000, 0x40000, 0x53053053
PLAN = -(-len(ptrace._CODE) // 16) * 16
libc_mmap = LIBC.mmap
libc_mmap.restype = ctypes.c_void_p
libc_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


def word(value):
    return struct.pack("=I", value)


def area():
    return threading.get_ident() + ctypes.c_long.in_dll(LIBC, "__rseq_offset").value


def prepare():
    for page in (ABORT, CODE, DATA):
        assert libc_mmap(page, 4096, 7, 0x32, -1, 0) == page
    # DATA: +0 the sequence, +0x40 where the kernel is told of it, +0x100 arguments of capget, +0x110 what it found
    sequence = struct.pack("=IIQQQ", 0, 0, RANGE, 0x7FFF00000000, ABORT + 8)
    ctypes.memmove(DATA, sequence, len(sequence))
    ctypes.memmove(DATA + 0x100, struct.pack("=Ii", 0x20080522, 0), 8)
    arm = b"\x48\xb9" + struct.pack("=Q", area() + 8) + b"\x48\xc7\x01" + word(DATA)  # mov rcx, area; mov [rcx], DATA
    forced = arm + b"\xb8" + word(39) + b"\x0f\x05\x0f\x0b"
    parent = b"\xb9" + word(CODE + 0x80) + b"\xff\xe1"
    instead = (b"\xb8" + word(125) + b"\xbf" + word(DATA + 0x100) + b"\xbe" + word(DATA + 0x110) + b"\x0f\x05"
               + b"\x49\x8d\x87" + struct.pack("=i", -PLAN) + b"\xff\xe0")
    # test r15; jnz instead | cmp eax,9; je forced | cmp eax,334; je forced | cmp eax,11; je forced | jmp parent
    head = b"\x4d\x85\xff\x0f\x85" + word(0)
    tests = b"".join((b"\x3d" + word(number) + b"\x0f\x84" + word(0)) for number in (9, 334, 11)) + b"\xe9" + word(0)
    base = len(head) + len(tests)
    at_forced, at_parent, at_instead = base, base + len(forced), base + len(forced) + len(parent)
    code = bytearray(head + tests + forced + parent + instead)
    struct.pack_into("=i", code, 5, at_instead - 9)
    for number in range(3):
        end = len(head) + 11 * (number + 1)
        struct.pack_into("=i", code, end - 4, at_forced - end)
    struct.pack_into("=i", code, base - 4, at_parent - base)
    ctypes.memmove(ABORT + 4, word(SIGNATURE) + bytes(code), len(code) + 4)
    clone = (b"\x41\x57\x4d\x31\xff" + arm + b"\xb8" + word(56) + b"\x49\x89\xf2\x31\xf6\x31\xd2\x4d\x31\xc0\x0f\x05")
    body = clone[:-2].ljust(0x7e, b"\x90") + b"\x0f\x05" + b"\x41\x5f\xc3"  # the call; pop r15; ret
    ctypes.memmove(CODE, body, len(body))


if os.getpid() != 1 and ctypes.c_uint.in_dll(LIBC, "__rseq_size").value:
    pid = 0
    while pid < 12:  # the sequence knows its child by the number of a call (9, 11), which must not be that of a process
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    prepare()
    call = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long)(CODE)

    def forks(flags, *, notify=True):
        LIBC.syscall(334, ctypes.c_void_p(area()), 32, 0, ctypes.c_uint(SIGNATURE))  # again, if it is off
        pid = call(flags, linux.thread_id_address())
        if pid == 0:
            NOTES["found"] = struct.unpack("=6I", ctypes.string_at(DATA + 0x110, 24))
        return pid

    linux.fork_with = forks
"""


@pytest.mark.attack("preloaded parents")
def test_a_restartable_sequence_does_not_take_a_fork_elsewhere(tmp_path: Path, platform: Platform) -> None:
    """The kernel would continue at an address that the parent has chosen, while the fork has its capabilities."""
    told = instances(tmp_path, RSEQ)
    assert [one["notes"] for one in told if any(one["notes"].get("found", ()))] == []


PROCESSES = """
import resource

NOTES["processes"] = resource.getrlimit(resource.RLIMIT_NPROC)[1]
"""


@pytest.mark.attack("preloaded parents")
def test_a_parent_cannot_have_all_processes_of_the_user(tmp_path: Path, platform: Platform) -> None:
    """Without control groups that is all that holds it; then nobody else could start anything."""
    told = instances(tmp_path, PROCESSES)
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    assert platform.processes(), "the platform was not found, nor are its control groups"
    if not limited_by(platform, "pids") and counts_processes_per_namespace() and hard != resource.RLIM_INFINITY:
        assert told[-1]["notes"]["processes"] <= hard * 3 // 4


FORGED = """
import stat
from aenv.isolation.forking import sandbox

if os.getpid() != 1:
    for fd in range(3, 64):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b'{"prepared": true, "reads": 5}')
        except OSError:
            pass
    sandbox.Sandbox._report = lambda *_: None
"""


@pytest.mark.attack("preloaded parents")
def test_a_parent_that_reports_nonsense_is_not_started_again_and_again(tmp_path: Path, platform: Platform) -> None:
    instances(tmp_path, FORGED, 9)
    project = tmp_path / "hostile"
    sandboxed = [process for process in platform.processes() if process.has_project(project) and process.depth > 2]
    assert len([process for process in sandboxed if not process.is_first]) <= 1


def test_a_line_of_a_status_file_is_matched_as_a_whole() -> None:
    status = b"Name:\tThreads:\nThreads:\t3\nSeccomp:\t2\nSeccomp_filters:\t4\n"
    assert preloaded.status_number(status, b"Threads") == 3
    assert preloaded.status_number(status, b"Seccomp_filters") == 4
    assert preloaded.status_number(status, b"Missing") == -1
