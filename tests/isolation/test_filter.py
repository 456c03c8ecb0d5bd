"""The system-call filter: what it allows, compared with Docker's default profile, and what the kernel does with it."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import socket
import struct
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import pytest

from aenv.images import container_init
from aenv.isolation.forking import preloaded
from aenv.isolation.forking.zygote_spec import FRESH
from aenv.isolation.kernel import linux, seccomp, syscall_numbers
from tests.isolation.conftest import Box

MACHINES = ("x86_64", "aarch64")
_DOCKER = """
    accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown chroot
    clock_adjtime clock_getres clock_gettime clock_nanosleep clone close close_range connect copy_file_range creat dup
    dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old
    eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fanotify_mark fchdir
    fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr
    fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_robust_list
    get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
    getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt
    gettid gettimeofday getuid getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch
    io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit ioctl ioprio_get ioprio_set kill
    landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listmount
    listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack membarrier
    memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt mprotect
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd
    msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause personality
    pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2
    prlimit64 process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2 read
    readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr removexattrat rename
    renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
    rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
    sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile
    sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups
    setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr
    setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socket socketpair splice stat statfs
    statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete
    timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate
    umask uname unlink unlinkat uretprobe utime utimensat utimes vfork vmsplice wait4 waitid write writev
"""
DOCKER = frozenset(_DOCKER.split())
"""What Docker's default profile lets through on a current kernel, in a container with Docker's default capabilities."""
NEVER = (
    "add_key", "bpf", "clone3", "fanotify_init", "io_uring_enter", "io_uring_register", "io_uring_setup", "kcmp",
    "keyctl", "memfd_secret", "mount", "move_pages", "open_by_handle_at", "perf_event_open", "pidfd_getfd",
    "pivot_root", "process_madvise", "request_key", "setns", "umount2", "unshare", "userfaultfd", "vmsplice",
)  # fmt: skip
X32 = 0x40000000
MPTCP = 262
UNTRACED, PTRACE = 0x00800000, 0x00002000

kernel = pytest.mark.skipif(not seccomp.supported(), reason=f"there is no filter for {linux.MACHINE}")


class Machine:
    """Runs a filter as the kernel does, so that it can be asked about any call without making it."""

    def __init__(self, program: bytes, name: str = "x86_64") -> None:
        self._code = list(struct.iter_unpack("=HBBI", program))
        self._audit = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[name]
        self.longest = 0

    def answer(self, number: int, *arguments: int, audit: int | None = None) -> str:
        data = struct.pack("=IIQ", number & 0xFFFFFFFF, self._audit if audit is None else audit, 0)
        data += struct.pack("=6Q", *(word & (1 << 64) - 1 for word in arguments), *[0] * (6 - len(arguments)))
        place = value = steps = 0
        while True:
            code, if_true, if_false, operand = self._code[place]
            place, steps = place + 1, steps + 1
            if code == 0x20:
                value = struct.unpack_from("=I", data, operand)[0]
            elif code == 0x05:
                place += operand
            elif code == 0x06:
                self.longest = max(self.longest, steps)
                return {0x7FFF: "allow", 0x8000: "kill", 0x7FF0: "trace"}.get(
                    operand >> 16, errno.errorcode.get(operand & 0xFFFF, "?")
                )
            else:
                yes = {0x15: value == operand, 0x45: bool(value & operand), 0x35: value >= operand}[code]
                place += if_true if yes else if_false


@pytest.mark.parametrize("allowed", [(), container_init.ALLOWED], ids=["sandbox", "container"])
@pytest.mark.parametrize("name", MACHINES)
def test_the_filter_lets_nothing_through_that_docker_refuses(name: str, allowed: Collection[str]) -> None:
    machine = Machine(seccomp.program(allowed=allowed, machine=name), name)
    passing = {call for call, number in syscall_numbers.numbers(name).items() if machine.answer(number) == "allow"}
    assert passing <= DOCKER
    assert len(passing) > 200
    assert passing & (seccomp.ALLOWED | set(allowed)) == (seccomp.ALLOWED | set(allowed)) & set(
        syscall_numbers.numbers(name)
    )
    assert passing - seccomp.ALLOWED - set(allowed) <= seccomp.CHECKED


@pytest.mark.parametrize("name", MACHINES)
def test_a_call_that_is_known_and_not_allowed_is_not_permitted(name: str) -> None:
    machine = Machine(seccomp.program(machine=name), name)
    numbers = syscall_numbers.numbers(name)
    refused = set(numbers) - seccomp.ALLOWED - seccomp.CHECKED - set(seccomp.FALLEN_BACK_FROM)
    assert {call: machine.answer(numbers[call]) for call in refused} == dict.fromkeys(refused, "EPERM")
    assert set(NEVER) - {"clone3"} <= refused
    assert {machine.answer(numbers[call]) for call in seccomp.FALLEN_BACK_FROM} == {"ENOSYS"}
    assert "clone3" in seccomp.FALLEN_BACK_FROM


@pytest.mark.parametrize("name", MACHINES)
def test_a_number_that_is_not_known_is_not_implemented(name: str) -> None:
    machine = Machine(seccomp.program(machine=name), name)
    known = set(syscall_numbers.numbers(name).values())
    for number in (*range(2000), 0x3FFFFFFF, 0xFFFFFFFF):
        if number not in known:
            assert machine.answer(number) == "ENOSYS", number


def test_calls_of_another_architecture_kill_the_process() -> None:
    machine = Machine(seccomp.program(machine="x86_64"))
    for number in (0, 39, 512, 547):
        assert machine.answer(X32 | number) == "kill"
    assert machine.answer(1, audit=0x40000003) == "kill"  # of a 32-bit program
    assert Machine(seccomp.program(machine="aarch64"), "aarch64").answer(1, audit=0x40000028) == "kill"


@pytest.mark.parametrize("name", MACHINES)
def test_a_call_is_decided_on_after_few_comparisons(name: str) -> None:
    machine = Machine(seccomp.program(machine=name), name)
    for call in seccomp.ALLOWED & set(syscall_numbers.numbers(name)):
        machine.answer(syscall_numbers.numbers(name)[call])
    assert machine.longest <= 13  # two that load, one for the processor, one that returns


@pytest.mark.parametrize("name", MACHINES)
def test_only_ordinary_sockets_can_be_made(name: str) -> None:
    machine, numbers = Machine(seccomp.program(machine=name), name), syscall_numbers.numbers(name)
    made = {
        (family, protocol)
        for family in range(64)
        for protocol in range(512)
        if machine.answer(numbers["socket"], family, socket.SOCK_STREAM, protocol) == "allow"
    }
    assert {family for family, _ in made} == {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    for family in (socket.AF_INET, socket.AF_INET6):
        assert {protocol for one, protocol in made if one == family} == {0, 1, 6, 17, 58}
    assert {protocol for family, protocol in made if family == socket.AF_NETLINK} == {0}
    pairs = {family for family in range(64) if machine.answer(numbers["socketpair"], family) == "allow"}
    assert pairs == {socket.AF_UNIX}


@pytest.mark.parametrize("name", MACHINES)
def test_bits_of_an_argument_that_the_kernel_ignores_are_ignored_here_too(name: str) -> None:
    machine, numbers = Machine(seccomp.program(machine=name), name), syscall_numbers.numbers(name)
    high = 1 << 32
    assert machine.answer(numbers["ioctl"], 0, high | 0x5412) == "EPERM"
    assert machine.answer(numbers["socket"], socket.AF_INET, 1, high | MPTCP) == "EPROTONOSUPPORT"
    assert machine.answer(numbers["socket"], high | socket.AF_VSOCK, 1, 0) == "EAFNOSUPPORT"
    assert machine.answer(numbers["clone"], high | linux.CLONE_NEWUSER | signal.SIGCHLD) == "EPERM"


@pytest.mark.parametrize("traced", [{}, preloaded.traced_calls(FRESH)], ids=["instance", "preloaded parent"])
@pytest.mark.parametrize("name", MACHINES)
def test_no_flag_of_clone_leads_out(name: str, traced: seccomp.Traced) -> None:
    machine, numbers = Machine(seccomp.program(machine=name, traced=traced), name), syscall_numbers.numbers(name)
    threads = 0x3D0F00 | signal.SIGCHLD
    assert machine.answer(numbers["clone"], signal.SIGCHLD) == machine.answer(numbers["clone"], threads) == "allow"
    for bit in (UNTRACED, PTRACE, linux.CLONE_PARENT, *(1 << place for place in range(25, 31)), linux.CLONE_NEWNS):
        assert machine.answer(numbers["clone"], bit | signal.SIGCHLD) == "EPERM", hex(bit)


@pytest.mark.parametrize("name", MACHINES)
def test_only_the_exact_flags_that_were_named_stop_for_a_tracer(name: str) -> None:
    word = linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_PARENT | linux.FORK_FLAGS | signal.SIGCHLD
    traced = {"clone": (word,), "mount": ()}
    machine, numbers = Machine(seccomp.program(machine=name, traced=traced), name), syscall_numbers.numbers(name)
    assert machine.answer(numbers["clone"], word) == "trace"
    for place in range(8, 32):
        assert machine.answer(numbers["clone"], word ^ (1 << place)) == "EPERM", place
    assert machine.answer(numbers["clone"], signal.SIGCHLD) == "allow"
    assert machine.answer(numbers["mount"], 1, 2, 3) == "trace"
    assert machine.answer(numbers["unshare"], linux.CLONE_NEWCGROUP) == "EPERM"


def test_a_preloaded_parent_may_be_traced_for_one_fork_and_what_its_child_builds() -> None:
    traced = preloaded.traced_calls(FRESH)
    machine, numbers = Machine(seccomp.program(traced=traced, machine="x86_64")), syscall_numbers.numbers("x86_64")
    word = preloaded.fork_flags(FRESH)
    assert machine.answer(numbers["clone"], word) == "trace"
    assert machine.answer(numbers["clone"], word | UNTRACED) == "EPERM"
    for name in ("mount", "umount2", "pivot_root", "open_tree", "move_mount", "sethostname"):
        assert machine.answer(numbers[name]) == "trace"
    for name in ("setns", "unshare", "ptrace", "bpf", "keyctl", "process_vm_writev"):
        assert machine.answer(numbers[name]) == "EPERM"


@pytest.mark.parametrize("name", MACHINES)
def test_memory_that_no_limit_counts_is_refused_by_the_second_filter(name: str) -> None:
    machine, numbers = Machine(seccomp.countable(name), name), syscall_numbers.numbers(name)
    refused = {call for call, number in numbers.items() if machine.answer(number) != "allow"}
    assert refused == {"memfd_create"}
    assert machine.answer(numbers["memfd_create"]) == "ENOSYS"
    for size in (seccomp.SEGMENT + 1, 1 << 31, 1 << 32, (1 << 32) + 1, (1 << 64) - 1):
        assert machine.answer(numbers["shmget"], 0, size) == "EINVAL"
    assert machine.answer(numbers["shmget"], 0, seccomp.SEGMENT) == "allow"


def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    header = next(
        (
            path
            for path in map(Path, ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"))
            if path.exists()
        ),
        None,
    )
    if header is None:
        pytest.skip("the kernel's headers are not installed")
    said = {name: int(number) for name, number in re.findall(r"__NR_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)}
    known = syscall_numbers.numbers("x86_64")
    assert {name: known[name] for name in said if name in known} == {name: said[name] for name in said if name in known}
    newer = {name for name in said if name not in known}
    assert all(said[name] > max(known.values()) for name in newer)


def attempt(call: Callable[[], object], *, traced: seccomp.Traced | None = None) -> str:
    """What a call comes to in a process that has loaded the filter: an errno, a signal, or ``allowed``."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "allowed"
        try:
            linux.no_new_privileges()
            linux.load_seccomp(seccomp.program(traced=traced))
            call()
        except OSError as error:
            said = errno.errorcode[error.errno or 0]
        finally:
            os.write(theirs, said.encode())
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        said = answer.read()
    _, status = os.waitpid(pid, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else said


def raw(name: str | int, *arguments: int) -> Callable[[], object]:
    number = linux.number(name) if isinstance(name, str) else name

    def call() -> int:
        result = linux.system_call(number, *arguments)
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result

    return call


@pytest.mark.attack("system calls")
@kernel
@pytest.mark.parametrize("name", [name for name in NEVER if name != "clone3"])
def test_the_kernel_refuses_what_the_filter_refuses(name: str) -> None:
    assert attempt(raw(name, 0, 0, 0, 0, 0)) == "EPERM"


@kernel
@pytest.mark.parametrize("number", [400, 600, 1000, -1])
def test_the_kernel_does_not_know_what_the_filter_does_not_know(number: int) -> None:
    assert attempt(raw(number, 0, 0)) == "ENOSYS"
    assert attempt(raw("clone3", 0, 0)) == "ENOSYS"


@kernel
def test_sockets_beyond_the_ordinary_ones_are_refused() -> None:
    for family in (socket.AF_INET, socket.AF_INET6):
        assert attempt(partial(socket.socket, family, socket.SOCK_STREAM, MPTCP)) == "EPROTONOSUPPORT"
        assert attempt(partial(socket.socket, family, socket.SOCK_STREAM, 132)) == "EPROTONOSUPPORT"
        assert attempt(partial(socket.socket, family, socket.SOCK_STREAM)) == "allowed"
    for protocol in range(1, 23):
        assert attempt(partial(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, protocol)) == "EPROTONOSUPPORT"
    assert attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)) == "allowed"
    for family_number in (10000, 17, 30, 38, 40, 44):
        assert attempt(partial(socket.socket, family_number, socket.SOCK_DGRAM)) == "EAFNOSUPPORT"
    assert attempt(socket.socketpair) == "allowed"
    assert attempt(lambda: socket.socketpair(30, socket.SOCK_STREAM)) == "EAFNOSUPPORT"


@pytest.mark.attack("system calls")
@kernel
def test_input_cannot_be_put_into_a_terminal() -> None:
    leader, follower = os.openpty()
    letter = ctypes.create_string_buffer(b"x")
    try:
        for command in (0x5412, 0x541C):
            assert attempt(raw("ioctl", follower, command, ctypes.addressof(letter))) == "EPERM"
        assert attempt(lambda: os.get_terminal_size(follower)) == "allowed"
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.attack("system calls")
@kernel
def test_a_program_does_not_become_one_of_another_system() -> None:
    read_implies_exec, no_randomization = 0x0400000, 0x0040000
    assert attempt(raw("personality", 0xFFFFFFFF)) == attempt(raw("personality", 0)) == "allowed"
    for value in (read_implies_exec, no_randomization):
        assert attempt(raw("personality", value)) == "EPERM"


@pytest.mark.attack("system calls")
@kernel
@pytest.mark.parametrize("traced", [{}, preloaded.traced_calls(FRESH)], ids=["instance", "preloaded parent"])
def test_a_child_that_no_tracer_sees_cannot_be_made(traced: seccomp.Traced) -> None:
    flags = preloaded.fork_flags(FRESH)
    for more in (UNTRACED, PTRACE, UNTRACED | PTRACE):
        assert attempt(raw("clone", flags | more, 0, 0, 0, 0), traced=traced) == "EPERM"
    assert attempt(raw("clone", UNTRACED | signal.SIGCHLD, 0, 0, 0, 0), traced=traced) == "EPERM"
    expected = "ENOSYS" if traced else "EPERM"  # nobody traces it
    assert attempt(raw("clone", flags, 0, 0, 0, 0), traced=traced) == expected


@kernel
def test_programs_find_out_about_the_network_and_change_nothing(box: Box) -> None:
    assert "lo" in box.python("import socket; result = [name for _, name in socket.if_nameindex()]")
    change = """
        import os, socket, struct
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
            link.bind((0, 0))
            down = struct.pack("=BxHiII", 0, 0, 1, 0, 1)
            link.send(struct.pack("=IHHII", 16 + len(down), 16, 5, 1, 0) + down)
            result = -struct.unpack_from("=i", link.recv(4096), 16)[0]
            if result:
                raise OSError(result, "refused")
    """
    assert box.refused(change) == "EPERM"
    assert box.refused(f"import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM, {MPTCP})") is not None
    assert box.refused("import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)") is not None


@kernel
def test_programs_of_many_kinds_run_behind_the_filter(box: Box) -> None:
    """Those that the host has: what is missing here is in the tests of containers."""
    programs = {
        "bash": "bash -c 'for i in 1 2 3; do echo $i | cat; done | tail -1'",
        "git": "cd /tmp && git init -q g && cd g && git -c user.name=a -c user.email=b commit -q --allow-empty -m x",
        "gcc": "cd /tmp && echo 'int main(){return 0;}' > a.c && gcc -o a a.c && ./a",
        "node": "node -e 'require(\"os\").networkInterfaces(); setTimeout(() => console.log(1), 1)'",
        "java": "java -Xmx64m -version",
        "python3": "python3 -c 'import subprocess, threading; subprocess.run([\"true\"], check=True)'",
        "tar": "cd /tmp && mkdir -p t && echo x > t/x && tar cf t.tar t && tar tf t.tar",
        "openssl": "openssl rand -hex 8",
    }
    for name, command in programs.items():
        if box.shell(f"command -v {name}")["code"] == 0:
            done = box.shell(command)
            assert done["code"] == 0, (name, done)
