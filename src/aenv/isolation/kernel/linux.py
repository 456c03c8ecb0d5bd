"""The system calls that Python does not offer, as plain functions that raise OSError."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import struct
import threading
from collections.abc import Collection
from functools import cache

from aenv.isolation.kernel import syscall_numbers
from aenv.isolation.limits import user_shares

CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

FORK_FLAGS = 0x00200000 | 0x01000000
"""CLONE_CHILD_CLEARTID and CLONE_CHILD_SETTID, which the C library's own fork sets, too."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_TID_ADDRESS = 40
_THREAD_WORDS = 256  # of 4 bytes; glibc has the number in the 180th on x86_64
_RSEQ_LEAST, _RSEQ_MOST, _RSEQ_SIGNATURE = 32, 256, ctypes.c_uint(0x53053053)
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAP_VERSION_3 = 0x20080522

MACHINE = os.uname().machine
HERE = -100
"""AT_FDCWD: paths count from the current folder."""
_AT_EMPTY_PATH = 0x1000
CLONE_TREE = 0x1 | 0x80000
"""For open_tree: a copy that is closed on exec."""
MOVE_MOUNT_F_EMPTY_PATH = 0x4
AT_RECURSIVE = 0x8000
_ATTR_IDMAP = 0x100000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_holding = ctypes.PyDLL(None, use_errno=True)  # calls with the interpreter's lock held, as forking wants it
_holding.syscall.argtypes = (ctypes.c_long,) * 6
_holding.syscall.restype = ctypes.c_long
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_in_the_child = ctypes.pythonapi.PyOS_AfterFork_Child
_in_the_parent = ctypes.pythonapi.PyOS_AfterFork_Parent


def _done(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def number(name: str) -> int:
    """A system call's number on this processor."""
    return syscall_numbers.numbers(MACHINE)[name]


def system_call(called: int, *arguments: int) -> int:
    """Any of them, by its number; a negative result is an error's number."""
    result = int(_libc.syscall(ctypes.c_long(called), *(ctypes.c_long(argument) for argument in arguments)))
    return result if result != -1 else -ctypes.get_errno()


def executable(code: bytes) -> int:
    """The address of instructions, in memory that is never written to again, nor given back."""
    readable, writable, runs, private, of_no_file = 0x1, 0x2, 0x4, 0x02, 0x20
    size = ctypes.c_size_t(len(code))
    address = _libc.mmap(None, size, readable | writable, private | of_no_file, -1, ctypes.c_long(0))
    if address == ctypes.c_void_p(-1).value:
        _done(-1, "mmap")
    ctypes.memmove(address, code, len(code))
    _done(_libc.mprotect(ctypes.c_void_p(address), size, readable | runs), "mprotect")
    return int(address)


def _syscall(name: str, *arguments: object) -> None:
    _done(_libc.syscall(ctypes.c_long(number(name)), *arguments), name)


def unshare(flags: int) -> None:
    """Leave the namespaces of the parent."""
    _done(_libc.unshare(flags), f"unshare({flags:#x})")


def fork_into(namespaces: int) -> int:
    """Fork, with the child in new namespaces, all of which belong to its new user namespace. 0 in the child."""
    return fork_with(namespaces | FORK_FLAGS | signal.SIGCHLD)


def fork_with(flags: int, *, notify: bool = True) -> int:
    """Fork by ``clone`` with these flags, which contain `FORK_FLAGS`. Return 0 in the child.

    ``notify``: run Python's handlers, as `os.fork` does. A process with one thread, and without a module that
    registered handlers (`forkable.modules_to_notify`), can do without: no lock is held, and only random numbers are to
    be seeded anew. What Python does after a fork writes to a fifth of all the memory that an instance ever writes to.
    """
    known = _thread_number_at()
    if notify:
        _before_fork()
    if MACHINE == "aarch64":  # the last two arguments change places
        pid = int(_holding.syscall(number("clone"), flags, 0, 0, 0, known))
    else:
        pid = int(_holding.syscall(number("clone"), flags, 0, 0, known, 0))
    if pid == 0:
        if notify:
            _in_the_child()
        return 0
    error = ctypes.get_errno()
    if notify:
        _in_the_parent()
    if pid < 0:
        raise OSError(error, f"clone({flags:#x}): {os.strerror(error)}")
    return pid


def _thread_number_at() -> int:
    """Where the C library keeps the number of this thread."""
    told = ctypes.c_ulong()
    if _libc.prctl(_PR_GET_TID_ADDRESS, ctypes.addressof(told), 0, 0, 0) == 0:
        return told.value
    return threading.get_ident() + thread_number_offset()


@cache
def thread_number_offset() -> int:
    """Where it is in the C library's record of a thread, for a kernel without CONFIG_CHECKPOINT_RESTORE.

    Call it first where thread numbers are large: in a new process namespace they are small, and found in many places.
    """
    found = (ctypes.c_int * _THREAD_WORDS).from_address(threading.get_ident())
    places = [place for place, word in enumerate(found) if word == threading.get_native_id()]
    if len(places) != 1:
        raise OSError(errno.ENOSYS, "the C library's record of the thread is not as expected")
    return 4 * places[0]


def current_cpu() -> int:
    """The number of the CPU that this thread runs on, at this moment."""
    return int(_libc.sched_getcpu())


def forget_rseq() -> None:
    """End the registration of this thread for restartable sequences, which the C library makes. It copes without."""
    try:
        offset = ctypes.c_long.in_dll(_libc, "__rseq_offset").value
    except ValueError:  # an older C library, or another one
        return
    area, unregister = ctypes.c_void_p(threading.get_ident() + offset), ctypes.c_int(1)
    for size in range(_RSEQ_LEAST, _RSEQ_MOST + 1):  # what it was registered with depends on library and kernel
        if _libc.syscall(ctypes.c_long(number("rseq")), area, ctypes.c_uint(size), unregister, _RSEQ_SIGNATURE) == 0:
            return


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind a descriptor."""
    _done(_libc.setns(fd, kind), "setns")


def pidfd_getfd(pidfd: int, fd: int) -> int:
    """A copy of another process's descriptor, closed on exec. Needs the right to trace that process."""
    return _opened(int(_libc.syscall(ctypes.c_long(number("pidfd_getfd")), pidfd, fd, ctypes.c_uint(0))), "pidfd_getfd")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """Mount something."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, flags, data.encode() if data else None
    )
    _done(result, f"mount({kind or 'bind'}, {target})")


def bind(source: str, target: str) -> None:
    """Show a file or a tree, with all that is mounted in it, at a second place."""
    mount(source, target, flags=MS_BIND | MS_REC)


def bind_as(source: str, target: str, owner: int, seen_as: int, count: int = 1) -> None:
    """Show a tree in which what belongs to the host's user ``owner`` belongs to ``seen_as``; and so on, for ``count``
    users from there. Only root may.
    """
    namespace = _user_namespace(owner, seen_as, count)
    try:
        tree = _opened(
            _libc.syscall(
                ctypes.c_long(number("open_tree")), ctypes.c_int(HERE), source.encode(), ctypes.c_uint(CLONE_TREE)
            )
        )
        try:
            request = ctypes.create_string_buffer(struct.pack("=QQQQ", _ATTR_IDMAP, 0, 0, namespace))
            _syscall(
                "mount_setattr", ctypes.c_int(tree), ctypes.c_char_p(b""), ctypes.c_uint(_AT_EMPTY_PATH), request,
                ctypes.c_size_t(32),
            )  # fmt: skip
            moved = _libc.syscall(
                ctypes.c_long(number("move_mount")), ctypes.c_int(tree), b"", ctypes.c_int(HERE), target.encode(),
                ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH),
            )  # fmt: skip
            _done(moved, f"move_mount({target})")
        finally:
            os.close(tree)
    finally:
        os.close(namespace)


def _user_namespace(owner: int, seen_as: int, count: int) -> int:
    """A descriptor of a user namespace that says who is who."""
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            unshare(CLONE_NEWUSER)
            os.write(go, b"1")
        finally:
            os.close(go)
            signal.pause()
            os._exit(0)
    os.close(go)
    try:
        if not os.read(ready, 1):
            raise OSError(1, "unshare: a user namespace for mapping owners could not be made")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(f"{owner} {seen_as} {count}")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _opened(result: int, what: str = "open_tree") -> int:
    _done(result, what)
    return result


def umount(target: str) -> None:
    """Take a mount, and all below it, away; it ends when nobody uses it any more."""
    _done(_libc.umount2(target.encode(), MNT_DETACH), f"umount({target})")


def make_read_only(path: str, *, nodev: bool = True) -> None:
    """Make a tree of mounts read-only, without setuid and, unless told otherwise, without devices."""
    _set_attributes(path, 0x1 | 0x2 | (0x4 if nodev else 0))


def make_plain(path: str) -> None:
    """Leave a tree of mounts writable, without setuid and without devices."""
    _set_attributes(path, 0x2 | 0x4)


def _set_attributes(path: str, attributes: int) -> None:
    request = ctypes.create_string_buffer(struct.pack("=QQQQ", attributes, 0, 0, 0))
    _syscall(
        "mount_setattr", ctypes.c_int(-100), ctypes.c_char_p(path.encode()), ctypes.c_uint(AT_RECURSIVE), request,
        ctypes.c_size_t(32),
    )  # fmt: skip


def pivot_root(new: str) -> None:
    """Make ``new`` the root, and forget the old one."""
    os.chdir(new)
    _syscall("pivot_root", ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    umount(".")
    os.chdir("/")


def die_with_parent(signal_number: int = 9) -> None:
    """Have the kernel kill this process when the one that forked it ends."""
    _done(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PDEATHSIG)")


def set_dumpable(yes: bool) -> None:
    """Whether /proc/self belongs to this user; changing the user id takes it away."""
    _done(_libc.prctl(_PR_SET_DUMPABLE, int(yes), 0, 0, 0), "prctl(DUMPABLE)")


def capabilities() -> range:
    """All that this kernel knows."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        return range(int(file.read()) + 1)


def drop_capabilities(keep: Collection[int] = ()) -> None:
    """Give up every capability but those to keep, for good and for all that this process will start."""
    for capability in capabilities():
        if capability not in keep:
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    kept = sum(1 << capability for capability in keep)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAP_VERSION_3, 0))
    _syscall("capset", header, ctypes.create_string_buffer(struct.pack("=6I", low, low, 0, high, high, 0), 24))


def has_capabilities(pid: int) -> bool:
    """Whether another process has any, effective or permitted."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAP_VERSION_3, pid))
    found = ctypes.create_string_buffer(24)
    _syscall("capget", header, found)
    effective, permitted, _, more_effective, more_permitted, _ = struct.unpack("=6I", found.raw)
    return bool(effective | permitted | more_effective | more_permitted)


def user_maps(inside: int, user: int, group: int, *, bounded: bool = True) -> list[tuple[str, str]]:
    """Return what to write into which files, seen from /proc/self, to make this user of the namespace above ``inside``,
    and nobody else anybody.

    ``bounded``: the namespace is one instance's, and gets no more than `shares.INSTANCE`.
    """
    maps = [("setgroups", "deny"), ("uid_map", f"{inside} {user} 1"), ("gid_map", f"{inside} {group} 1")]
    return [
        *maps,
        *(
            (f"../sys/user/{name}", text)
            for name, text in (user_shares.limits_for(user_shares.INSTANCE) if bounded else ())
        ),
    ]


def map_user(inside: int, user: int, group: int, *, bounded: bool = True) -> None:
    """Do so, in a new user namespace."""
    for name, text in user_maps(inside, user, group, bounded=bounded):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def collapse_heap() -> None:
    """Gather this process's own memory into huge pages where the kernel can: there is less to copy for a fork."""
    collapse, size = 25, 2 << 20
    with open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    for line in lines:
        place, mode, _, _, inode, *_ = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in place.split("-"))
        start, end = -(-start // size) * size, end // size * size
        if mode == "rw-p" and inode == "0":
            for block in range(start, end, size):  # one that cannot be must not keep the others from it
                _libc.madvise(ctypes.c_void_p(block), ctypes.c_size_t(size), collapse)


def leave_session_keyring() -> None:
    """Take an empty keyring in place of the one that came with the user's login."""
    join_session_keyring = 1
    _syscall("keyctl", ctypes.c_int(join_session_keyring), None)


def no_new_privileges() -> None:
    """Make setuid programs ordinary ones."""
    _done(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def load_seccomp(program: bytes) -> None:
    """Put a filter in front of every system call, for good."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    set_mode_filter = 1
    _syscall("seccomp", ctypes.c_uint(set_mode_filter), ctypes.c_uint(0), ctypes.create_string_buffer(header))


def peer_user(connection: socket.socket) -> int:
    """The user id of the process at the other end of a unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
