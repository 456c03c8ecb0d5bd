"""The system-call filter: an allow-list of the calls that a sandbox may make; all others are refused.

Capabilities and namespaces refuse most of it already. The filter covers what they do not (vsock leaves a network
namespace, io_uring works around filters) and the next hole. Docker's default profile is the upper bound: nothing
passes here that it refuses, and much that it lets through is refused here because no instance needs it.

A refused call fails with EPERM, as it does in Docker. A number that `syscall_numbers` does not know fails with
ENOSYS, and so do the calls of `FALLEN_BACK_FROM`: programs that try a newer call first then use the older one.

The program is a binary search over the call's number: at most nine comparisons where the kernel (before 5.11) runs it
for every call. Later kernels work out ahead which calls pass whatever their arguments are, and run nothing for those.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence

from aenv.isolation.kernel import linux, syscall_numbers
from aenv.isolation.kernel.linux import MACHINE

_ALLOWED = """
    accept accept4 access alarm arch_prctl bind brk capget capset chdir chmod chown clock_getres clock_gettime
    clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
    epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64
    fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork
    fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat
    get_robust_list getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
    getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt
    gettid gettimeofday getuid getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch
    ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link
    linkat listen listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack
    membarrier memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect mq_getsetattr
    mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock
    munlockall munmap nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc
    pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 pselect6 pwrite64 pwritev pwritev2 read
    readahead readlink readlinkat readv recvfrom recvmmsg recvmsg removexattr removexattrat rename renameat renameat2
    restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
    rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
    sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
    sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto
    set_robust_list set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid
    setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown
    sigaltstack signalfd signalfd4 splice stat statfs statx symlink symlinkat sync sync_file_range syncfs sysinfo tee
    tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
    timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork wait4 waitid write
    writev
"""
ALLOWED = frozenset(_ALLOWED.split())
"""Calls that pass whatever their arguments are, on the processors that have them."""
CHECKED = frozenset(("clone", "ioctl", "personality", "prlimit64", "socket", "socketpair"))
"""Calls that pass with some arguments only: see `_checks`."""
FALLEN_BACK_FROM = ("cachestat", "clone3", "listmount", "statmount")
"""Refused calls that programs try first where the kernel has them: with ENOSYS they do without. The flags of clone3 are
behind a pointer, where no filter sees them."""
TRACEABLE = {"clone": 0, "mount": 3, "move_mount": 4, "open_tree": 2, "pivot_root": 0, "sethostname": 1, "umount2": 1}
"""Calls that can be left to a tracer, and the argument that has their flags."""
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""PER_LINUX and PER_LINUX32, each with and without UNAME26; the last one only queries. Docker allows the same."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
"""ioctls that put input into a terminal: a program could type into the shell that it was started from."""
INTERNET_PROTOCOLS = (0, socket.IPPROTO_ICMP, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMPV6)
"""Not MPTCP, SCTP, DCCP and the like, which are large, rarely used parts of the kernel."""
SEGMENT = 64 << 10
"""Bytes of shared memory of System V that `countable` allows in one segment; PostgreSQL needs 56."""
NETLINK_ROUTE = 0
"""The one netlink protocol that programs need, to list the network's interfaces. Changes take a capability."""

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT, _NO_CALL = 0x40000000, 0xFFFFFFFF
_CLONE_PTRACE, _CLONE_UNTRACED = 0x00002000, 0x00800000
_CLONE_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes
_CLONE_REFUSED = _CLONE_NAMESPACES | _CLONE_UNTRACED | _CLONE_PTRACE | linux.CLONE_PARENT

_LOAD, _JUMP, _JUMP_EQ, _JUMP_SET, _JUMP_GE, _RETURN = 0x20, 0x05, 0x15, 0x45, 0x35, 0x06
_FAR = 255
"""Most instructions that a conditional jump can skip."""
_NR, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


Code = list[bytes]
"""Instructions that end the program, each 8 bytes."""
_ALLOW: Code = [_op(_RETURN, 0x7FFF0000)]
_KILL: Code = [_op(_RETURN, 0x80000000)]
_TRACE: Code = [_op(_RETURN, 0x7FF00000)]


def _fail(number: int) -> Code:
    return [_op(_RETURN, 0x00050000 | number)]


_REFUSE, _UNKNOWN = _fail(errno.EPERM), _fail(errno.ENOSYS)

Traced = Mapping[str, Collection[int]]
"""Calls that stop for a tracer, and the exact flags with which they do; without flags they always do. Each
fails with ENOSYS while there is no tracer that asked for such stops, and with EPERM for any other flags."""


def supported() -> bool:
    """Return whether there is a filter for this machine's processor."""
    return MACHINE in _AUDIT


def program(
    *,
    traced: Traced | None = None,
    allowed: Collection[str] = (),
    instead: Mapping[str, Code] | None = None,
    machine: str = MACHINE,
) -> bytes:
    """Return the filter as the kernel takes it.

    ``traced``: calls that are left to a tracer. ``allowed``: calls that pass beside `ALLOWED`. ``instead``: code for
    some calls, in place of what they have otherwise.
    """
    numbers = syscall_numbers.numbers(machine)
    if unknown := ALLOWED.union(allowed) - syscall_numbers.NAMES:
        raise ValueError(f"no processor has these system calls: {', '.join(sorted(unknown))}")
    actions: dict[int, Code] = dict.fromkeys(numbers.values(), _REFUSE)
    for name in ALLOWED.union(allowed):
        if name in numbers:
            actions[numbers[name]] = _ALLOW
    for name, code in _checks().items():
        actions[numbers[name]] = code
    for name in FALLEN_BACK_FROM:
        actions[numbers[name]] = _UNKNOWN
    for name, code in (instead or {}).items():
        if name in numbers:
            actions[numbers[name]] = code
    for name, values in (traced or {}).items():
        actions[numbers[name]] = _traced(TRACEABLE[name], values, actions[numbers[name]])
    whole = [_op(_LOAD, _ARCH), _op(_JUMP_EQ, _AUDIT[machine], 1, 0), *_KILL, _op(_LOAD, _NR)]
    return b"".join(whole + _search(_ranges(actions, x32=machine == "x86_64")))


def countable(machine: str = MACHINE) -> bytes:
    """Return a second filter, for sandboxes without a control group: it refuses memory that no other limit holds.

    ``memfd_create`` fails with ENOSYS, and programs use a file in /dev/shm instead, which has a size limit. A segment
    of shared memory of System V has up to `SEGMENT` bytes, and a namespace up to 4,096 of them. The kernel offers
    nothing against anonymous mappings that processes share.
    """
    numbers = syscall_numbers.numbers(machine)
    too_large = _fail(errno.EINVAL)
    segment = [
        _op(_LOAD, _ARGUMENTS + 8 + 4), _op(_JUMP_EQ, 0, len(too_large), 0), *too_large,
        _load(1), _op(_JUMP_GE, SEGMENT + 1, 0, len(too_large)), *too_large, *_ALLOW,
    ]  # fmt: skip
    whole = [_op(_LOAD, _ARCH), _op(_JUMP_EQ, _AUDIT[machine], 1, 0), *_KILL, _op(_LOAD, _NR)]
    for name, code in (("memfd_create", _UNKNOWN), ("shmget", segment)):
        whole += [_op(_JUMP_EQ, numbers[name], 0, len(code)), *code]
    return b"".join(whole + _ALLOW)


def confined(*, network: bool, shared_user: bool, machine: str = MACHINE) -> bytes:
    """Return the filter of a sandbox without namespaces: `program`, without what namespaces would keep apart.

    Landlock covers opening files, signals and tracing. This covers what it does not: objects that have a number and no
    path (shared memory and queues of System V), changes to processes by number, sockets, whose names Landlock does not
    check, and watching folders.

    ``network``: let sockets of the internet pass. ``shared_user``: processes outside of the sandbox have the same user,
    so the attributes of files must not be changed by path, as that works on every file of this user. These calls
    change nothing and report success (mode and times; many programs give up otherwise), or are refused.
    """
    only_itself = _switch(0, [(0, _ALLOW)], _REFUSE)
    nothing_more = _switch(1, [(0, _ALLOW)], _REFUSE)
    instead: dict[str, Code] = {
        **dict.fromkeys(_BY_NUMBER, _UNKNOWN),
        **dict.fromkeys(("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"), only_itself),
        "setpriority": _switch(0, [(0, nothing_more)], _REFUSE),
        "ioprio_set": _switch(0, [(1, nothing_more)], _REFUSE),
        # No datagram sockets, not even a pair: they reach every named socket of the container.
        "socketpair": _switch(0, [(socket.AF_UNIX, _pair_of_streams())], _fail(errno.EAFNOSUPPORT)),
    }
    if not network:
        instead["socket"] = _fail(errno.EAFNOSUPPORT)
    else:
        families = ((family, _checks()["socket"]) for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK))
        instead["socket"] = _switch(0, families, _fail(errno.EAFNOSUPPORT))
    if shared_user:
        instead |= dict.fromkeys(("chmod", "fchmodat", "fchmodat2", "futimesat", "utime", "utimes"), _fail(0))
        instead |= dict.fromkeys(("chown", "fchownat", "lchown"), _REFUSE)
        instead |= dict.fromkeys(_ATTRIBUTES_BY_PATH, _fail(errno.EOPNOTSUPP))
        instead["utimensat"] = [
            _op(_LOAD, _ARGUMENTS + 8 + 4), _op(_JUMP_EQ, 0, 1, 0), *_fail(0),
            _load(1), _op(_JUMP_EQ, 0, 0, 1), *_ALLOW, *_fail(0),
        ]  # fmt: skip
    return program(instead=instead, machine=machine)


_BY_NUMBER = (
    "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "mq_getsetattr", "mq_notify", "mq_open",
    "mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop",
    "semtimedop", "shmat", "shmctl", "shmdt", "shmget",
)  # fmt: skip
_ATTRIBUTES_BY_PATH = ("lremovexattr", "lsetxattr", "removexattr", "removexattrat", "setxattr", "setxattrat")


def _pair_of_streams() -> Code:
    kinds = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
    flags = (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    return _switch(1, ((kind | flag, _ALLOW) for kind in kinds for flag in flags), _fail(errno.EPROTONOSUPPORT))


def _checks() -> dict[str, Code]:
    """Return the code for calls that depend on their arguments. Of each of these the kernel uses the low 32 bits
    only.
    """
    internet = _switch(2, ((protocol, _ALLOW) for protocol in INTERNET_PROTOCOLS), _fail(errno.EPROTONOSUPPORT))
    return {
        "clone": [_load(0), _op(_JUMP_SET, _CLONE_REFUSED, 0, 1), *_REFUSE, *_ALLOW],
        "ioctl": _switch(1, ((command, _REFUSE) for command in (TIOCSTI, TIOCLINUX)), _ALLOW),
        "personality": _switch(0, ((value, _ALLOW) for value in PERSONALITIES), _REFUSE),
        # Only for the caller itself: the runtime has the same user, and could be denied CPU time or descriptors.
        "prlimit64": _switch(0, [(0, _ALLOW)], _REFUSE),
        "socket": _switch(
            0,
            (
                (socket.AF_UNIX, _ALLOW),
                (socket.AF_INET, internet),
                (socket.AF_INET6, internet),
                (socket.AF_NETLINK, _switch(2, [(NETLINK_ROUTE, _ALLOW)], _fail(errno.EPROTONOSUPPORT))),
            ),
            _fail(errno.EAFNOSUPPORT),
        ),
        "socketpair": _switch(0, [(socket.AF_UNIX, _ALLOW)], _fail(errno.EAFNOSUPPORT)),
    }


def _traced(argument: int, values: Collection[int], otherwise: Code) -> Code:
    return _switch(argument, ((value, _TRACE) for value in values), otherwise) if values else _TRACE


def _load(argument: int) -> bytes:
    """Load the low half of an argument, on a little-endian processor."""
    return _op(_LOAD, _ARGUMENTS + 8 * argument)


def _switch(argument: int, cases: Iterable[tuple[int, Code]], otherwise: Code) -> Code:
    code = [_load(argument)]
    for value, then in cases:
        code += [_op(_JUMP_EQ, value, 0, len(then)), *then]
    return code + otherwise


def _ranges(actions: Mapping[int, Code], *, x32: bool) -> list[tuple[int, Code]]:
    """Return where each run of numbers with one action begins, from 0 on, and that action."""
    found: list[tuple[int, Code]] = []
    for number in range(max(actions) + 2):
        action = actions.get(number, _UNKNOWN)
        if not found or found[-1][1] != action:
            found.append((number, action))
    if x32:  # a second table, with other conventions; -1 is a call that a tracer has cancelled
        found += [(_X32_BIT, _KILL), (_NO_CALL, _UNKNOWN)]
    return found


def _search(ranges: Sequence[tuple[int, Code]]) -> Code:
    """Return code that finds the range which the number in the accumulator is in."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    lower, upper = _search(ranges[:middle]), _search(ranges[middle:])
    if len(lower) <= _FAR:
        return [_op(_JUMP_GE, ranges[middle][0], len(lower), 0), *lower, *upper]
    return [_op(_JUMP_GE, ranges[middle][0], 0, 1), _op(_JUMP, len(lower)), *lower, *upper]
