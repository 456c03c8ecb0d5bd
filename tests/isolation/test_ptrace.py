"""A process that is stopped before its first instruction runs our system calls, whatever is in its memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aenv.isolation.kernel import linux, ptrace
from aenv.isolation.kernel.syscall_plan import SyscallPlan

pytestmark = pytest.mark.skipif(not ptrace.supported(), reason="written for x86_64")
WALL = 0x40000000
FLAGS = linux.FORK_FLAGS | signal.SIGCHLD


@contextmanager
def stopped_child(fork: Callable[[], None]) -> Iterator[ptrace.Stopped]:
    """A child, stopped at birth, of a process that runs ``fork`` once it is traced."""
    ready, go = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.read(ready, 1)
        fork()
        signal.pause()
        os._exit(0)
    born = None
    try:
        ptrace.trace_forks(parent)
        os.write(go, b"1")
        while born is None:
            _, status = os.waitpid(parent, WALL)
            born = ptrace.forked(parent, status)
            if born is None:
                ptrace.resume_parent(parent, status, FLAGS)
        yield ptrace.Stopped(born)
    finally:
        for pid in (parent, born):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        for fd in (ready, go):
            os.close(fd)
        for pid in (parent, born):
            with suppress(ChildProcessError):  # one that is not traced any more is the parent's child, and not ours
                while pid is not None and os.WIFSTOPPED(os.waitpid(pid, WALL)[1]):
                    pass


def _wrote(path: Path) -> SyscallPlan:
    plan = SyscallPlan()
    plan.do("mkdirat", linux.HERE, str(path), 0o755)
    return plan


def test_a_child_runs_a_plan_and_then_returns_from_its_fork(tmp_path: Path) -> None:
    def fork() -> None:
        if linux.fork_with(FLAGS, notify=False) == 0:
            os.mkdir(tmp_path / "own")
            signal.pause()

    with stopped_child(fork) as child:
        child.run(_wrote(tmp_path / "first"))
        assert (tmp_path / "first").is_dir()
        assert not (tmp_path / "own").exists()
        child.run(_wrote(tmp_path / "second"))
        assert (tmp_path / "second").is_dir()
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        assert " rwxp " in maps
        child.resume()
        while not (tmp_path / "own").is_dir():
            os.sched_yield()
        assert " rwxp " not in Path(f"/proc/{child.pid}/maps").read_text(), "memory of ours is left"


def test_a_plan_that_fails_says_where(tmp_path: Path) -> None:
    def fork() -> None:
        linux.fork_with(FLAGS, notify=False)

    with stopped_child(fork) as child, pytest.raises(FileExistsError, match="mkdirat"):
        child.run(_wrote(tmp_path))


def test_signals_during_a_plan_are_not_delivered(tmp_path: Path) -> None:
    def fork() -> None:
        signal.signal(signal.SIGUSR1, lambda *_: os.mkdir(tmp_path / "handled"))
        linux.fork_with(FLAGS, notify=False)

    with stopped_child(fork) as child:
        for _ in range(3):
            os.kill(child.pid, signal.SIGUSR1)
        plan = SyscallPlan()
        for number in range(50):
            plan.do("mkdirat", linux.HERE, f"{tmp_path}/{number}", 0o755)
        child.run(plan)
        assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(50))


def test_code_that_another_process_shares_and_changes_is_not_run(tmp_path: Path) -> None:
    code = mmap.mmap(-1, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # mov eax, 56 (clone); mov rdi, rsi; all other arguments 0; syscall; ret
    code.write(bytes.fromhex("b838000000 4889f7 31f6 31d2 4d31d2 4d31c0 0f05 c3".replace(" ", "")))
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))

    def fork() -> None:
        ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long)(address)(0, signal.SIGCHLD)

    with stopped_child(fork) as child:
        # The instruction before the child's instruction pointer makes no system call any more, but kills the process.
        at = bytes(code[:64]).index(bytes.fromhex("0f05"))
        code[at : at + 2] = bytes.fromhex("0f0b")
        with pytest.raises(OSError, match="could not be set up"):
            child.run(_wrote(tmp_path / "made"))
        assert not (tmp_path / "made").exists()


def test_a_parent_that_is_traced_may_make_no_other_traced_call() -> None:
    from aenv.isolation.forking import preloaded
    from aenv.isolation.kernel import seccomp

    said, say = os.pipe()
    go, tell = os.pipe()
    parent = os.fork()
    if parent == 0:
        linux.no_new_privileges()
        linux.load_seccomp(seccomp.program(traced=preloaded.traced_calls(0)))
        os.write(say, b"x")
        os.read(go, 1)
        for call in (lambda: linux.mount("x", "/", "tmpfs"), lambda: linux.umount("/"),
                     lambda: linux.fork_with(linux.CLONE_NEWUSER | FLAGS, notify=False)):  # fmt: skip
            try:
                call()
                os.write(say, b"done ")
            except OSError as error:
                os.write(say, f"{error.errno} ".encode())
        os._exit(0)
    try:
        os.close(say)
        assert os.read(said, 1) == b"x"
        ptrace.trace_forks(parent)
        os.write(tell, b"1")
        while True:
            _, status = os.waitpid(parent, WALL)
            if not os.WIFSTOPPED(status):
                break
            assert ptrace.forked(parent, status) is None
            ptrace.resume_parent(parent, status, preloaded.fork_flags(0))
        assert os.read(said, 100).split() == [b"38", b"38", b"1"]  # ENOSYS, and EPERM for clone with other flags
    finally:
        for fd in (said, go, tell):
            os.close(fd)
