"""System calls that Python does not offer, as functions that raise OSError."""

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

CLONE_VM = 0x00000100
CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

FORK_FLAGS = 0x00200000 | 0x01000000
"""CLONE_CHILD_CLEARTID and CLONE_CHILD_SETTID, as in the C library's own fork."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_TID_ADDRESS = 40
_THREAD_WORDS = 256  # words of 4 bytes to search; glibc has the number in the 180th on x86_64
_RSEQ_LEAST, _RSEQ_MOST, _RSEQ_SIGNATURE = 32, 256, ctypes.c_uint(0x53053053)
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAP_VERSION_3 = 0x20080522

MACHINE = os.uname().machine
HERE = -100
"""AT_FDCWD: paths are relative to the current folder."""
_AT_EMPTY_PATH = 0x1000
CLONE_TREE = 0x1 | 0x80000
"""For open_tree: a copy with close-on-exec."""
MOVE_MOUNT_F_EMPTY_PATH = 0x4
AT_RECURSIVE = 0x8000
_ATTR_IDMAP = 0x100000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_holding = ctypes.PyDLL(None, use_errno=True)  # calls with the GIL held, as forking requires
_holding.syscall.argtypes = (ctypes.c_long,) * 6
_holding.syscall.restype = ctypes.c_long
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_in_the_child = ctypes.pythonapi.PyOS_AfterFork_Child
_in_the_parent = ctypes.pythonapi.PyOS_AfterFork_Parent


def _check(result: int, what: str) -> None:
    """Raise OSError for a negative result."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def number(name: str) -> int:
    """Return the number of a system call on this processor."""
    return syscall_numbers.numbers(MACHINE)[name]


def system_call(called: int, *arguments: int) -> int:
    """Make a system call by number; a negative result is an errno."""
    result = int(_libc.syscall(ctypes.c_long(called), *(ctypes.c_long(argument) for argument in arguments)))
    return result if result != -1 else -ctypes.get_errno()


def executable(code: bytes) -> int:
    """Map instructions as read-only executable memory, for good; return the address."""
    readable, writable, runs, private, of_no_file = 0x1, 0x2, 0x4, 0x02, 0x20
    size = ctypes.c_size_t(len(code))
    address = _libc.mmap(None, size, readable | writable, private | of_no_file, -1, ctypes.c_long(0))
    if address == ctypes.c_void_p(-1).value:
        _check(-1, "mmap")
    ctypes.memmove(address, code, len(code))
    _check(_libc.mprotect(ctypes.c_void_p(address), size, readable | runs), "mprotect")
    return int(address)


def _syscall(name: str, *arguments: object) -> None:
    _check(_libc.syscall(ctypes.c_long(number(name)), *arguments), name)


def unshare(flags: int) -> None:
    """Move this process to new namespaces."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def fork_into(namespaces: int) -> int:
    """Fork into new namespaces, which belong to the child's new user namespace. Return 0 in the child."""
    return fork_with(namespaces | FORK_FLAGS | signal.SIGCHLD)


def fork_with(flags: int, *, notify: bool = True) -> int:
    """Fork by ``clone`` with these flags, which contain `FORK_FLAGS`. Return 0 in the child.

    ``notify``: run Python's handlers, as `os.fork` does. A process with one thread, and without a module that
    registered handlers (`forkable.modules_to_notify`), can do without: no lock is held, and only random numbers are to
    be seeded anew. What Python does after a fork writes to a fifth of all the memory that an instance ever writes to.
    """
    known = thread_id_address()
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


def reach_fork_point(flags: int) -> int:
    """Make a ``clone`` that a tracer acts on (`ptrace.stop_at_fork`). Return 0 in the child, and 1 in this process.

    Python's handlers for children do not run: the child has to call `after_fork_in_child` once it has put in order the
    descriptors that those handlers may close.

    Raises:
        OSError: the tracer did not let it be forked.
    """
    _before_fork()
    pid = int(_holding.syscall(number("clone"), flags, 0, 0, thread_id_address(), 0))
    if pid == 0:
        return 0
    error = ctypes.get_errno()
    _in_the_parent()
    if pid < 0:
        raise OSError(error, f"clone({flags:#x}): {os.strerror(error)}")
    return 1


def after_fork_in_child() -> None:
    """Run Python's handlers for children of a fork."""
    _in_the_child()


def thread_id_address() -> int:
    """Return the address where the C library keeps the id of this thread."""
    address = ctypes.c_ulong()
    if _libc.prctl(_PR_GET_TID_ADDRESS, ctypes.addressof(address), 0, 0, 0) == 0:
        return address.value
    return threading.get_ident() + thread_number_offset()


@cache
def thread_number_offset() -> int:
    """Return the offset of the thread id in the C library's thread descriptor.

    For kernels without CONFIG_CHECKPOINT_RESTORE. Call it first where thread ids are large: in a new process namespace
    they are small, and occur in many places.
    """
    found = (ctypes.c_int * _THREAD_WORDS).from_address(threading.get_ident())
    places = [place for place, word in enumerate(found) if word == threading.get_native_id()]
    if len(places) != 1:
        raise OSError(errno.ENOSYS, "the C library's thread descriptor is not as expected")
    return 4 * places[0]


def current_cpu() -> int:
    """Return the number of the CPU that this thread runs on now."""
    return int(_libc.sched_getcpu())


def forget_rseq() -> None:
    """Unregister this thread's restartable sequences (rseq). The C library registered them, and works without."""
    try:
        offset = ctypes.c_long.in_dll(_libc, "__rseq_offset").value
    except ValueError:  # an older C library, or another one
        return
    area, unregister = ctypes.c_void_p(threading.get_ident() + offset), ctypes.c_int(1)
    for size in range(_RSEQ_LEAST, _RSEQ_MOST + 1):  # the registered size depends on library and kernel
        if _libc.syscall(ctypes.c_long(number("rseq")), area, ctypes.c_uint(size), unregister, _RSEQ_SIGNATURE) == 0:
            return


def setns(fd: int, kind: int) -> None:
    """Enter a namespace, given by a descriptor."""
    _check(_libc.setns(fd, kind), "setns")


def pidfd_getfd(pidfd: int, fd: int) -> int:
    """Duplicate a descriptor of another process, with close-on-exec. Needs the right to trace that process."""
    return _opened(int(_libc.syscall(ctypes.c_long(number("pidfd_getfd")), pidfd, fd, ctypes.c_uint(0))), "pidfd_getfd")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """Mount a file system, or change a mount."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, flags, data.encode() if data else None
    )
    _check(result, f"mount({kind or 'bind'}, {target})")


def bind(source: str, target: str) -> None:
    """Bind-mount a file or a tree, with the mounts in it."""
    mount(source, target, flags=MS_BIND | MS_REC)


def bind_as(source: str, target: str, owner: int, seen_as: int, count: int = 1) -> None:
    """Bind-mount a tree with mapped owners: the host's user ``owner`` is shown as ``seen_as``, and so on for ``count``
    users. Only root may.
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
            _check(moved, f"move_mount({target})")
        finally:
            os.close(tree)
    finally:
        os.close(namespace)


def _user_namespace(owner: int, seen_as: int, count: int) -> int:
    """Return a descriptor of a user namespace with such a mapping."""
    ready, go = os.pipe()
    until, ended = os.pipe()  # the child ends when this process does, however that ends
    child = os.fork()
    if child == 0:
        try:
            os.close(ended)
            unshare(CLONE_NEWUSER)
            os.write(go, b"1")
        finally:
            os.close(go)
            os.read(until, 1)
            os._exit(0)
    os.close(go)
    os.close(until)
    try:
        if not os.read(ready, 1):
            raise OSError(1, "unshare: a user namespace for mapping owners could not be created")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(f"{owner} {seen_as} {count}")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(ended)
        os.waitpid(child, 0)


def _opened(result: int, what: str = "open_tree") -> int:
    _check(result, what)
    return result


def umount(target: str) -> None:
    """Detach a mount, and all below it; it ends when it is no longer in use."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount({target})")


def make_read_only(path: str, *, nodev: bool = True) -> None:
    """Make a tree of mounts read-only, nosuid and, by default, nodev."""
    _set_attributes(path, 0x1 | 0x2 | (0x4 if nodev else 0))


def make_plain(path: str) -> None:
    """Make a tree of mounts nosuid and nodev; it stays writable."""
    _set_attributes(path, 0x2 | 0x4)


def _set_attributes(path: str, attributes: int) -> None:
    request = ctypes.create_string_buffer(struct.pack("=QQQQ", attributes, 0, 0, 0))
    _syscall(
        "mount_setattr", ctypes.c_int(-100), ctypes.c_char_p(path.encode()), ctypes.c_uint(AT_RECURSIVE), request,
        ctypes.c_size_t(32),
    )  # fmt: skip


def pivot_root(new: str) -> None:
    """Make ``new`` the root, and detach the old one."""
    os.chdir(new)
    _syscall("pivot_root", ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    umount(".")
    os.chdir("/")


def die_with_parent(signal_number: int = 9) -> None:
    """Have the kernel kill this process when its parent process ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PDEATHSIG)")


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(CHILD_SUBREAPER)")


def set_dumpable(yes: bool) -> None:
    """Set the dumpable flag: whether /proc/self belongs to this user. Changing the user id clears it."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, int(yes), 0, 0, 0), "prctl(DUMPABLE)")


def capabilities() -> range:
    """Return all capabilities of this kernel."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        return range(int(file.read()) + 1)


def drop_capabilities(keep: Collection[int] = ()) -> None:
    """Drop every capability but those to keep, for good, for this process and its children."""
    drop_bounding_set(keep)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    kept = sum(1 << capability for capability in keep)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAP_VERSION_3, 0))
    _syscall("capset", header, ctypes.create_string_buffer(struct.pack("=6I", low, low, 0, high, high, 0), 24))


def drop_bounding_set(keep: Collection[int] = ()) -> None:
    """Give up gaining any capability but those to keep, as far as this process may: it takes CAP_SETPCAP."""
    for capability in capabilities():
        if capability not in keep:
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def has_capabilities(pid: int) -> bool:
    """Return whether another process has any capability, effective or permitted."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAP_VERSION_3, pid))
    found = ctypes.create_string_buffer(24)
    _syscall("capget", header, found)
    effective, permitted, _, more_effective, more_permitted, _ = struct.unpack("=6I", found.raw)
    return bool(effective | permitted | more_effective | more_permitted)


def user_maps(inside: int, user: int, group: int, *, bounded: bool = True) -> list[tuple[str, str]]:
    """Return the files below /proc/self, and their contents, that map this user of the parent namespace to ``inside``.

    No other user is mapped. ``bounded``: limit the namespace to `user_shares.INSTANCE`, as for one instance.
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
    """Write the files of `user_maps`, in a new user namespace."""
    for name, text in user_maps(inside, user, group, bounded=bounded):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def collapse_heap() -> None:
    """Collapse this process's private memory into huge pages where possible: a fork copies fewer page tables."""
    collapse, size = 25, 2 << 20
    with open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    for line in lines:
        place, mode, _, _, inode, *_ = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in place.split("-"))
        start, end = -(-start // size) * size, end // size * size
        if mode == "rw-p" and inode == "0":
            for block in range(start, end, size):  # one by one: a block that fails must not stop the others
                _libc.madvise(ctypes.c_void_p(block), ctypes.c_size_t(size), collapse)


def leave_session_keyring() -> None:
    """Replace the session keyring of the user's login by an empty one."""
    join_session_keyring = 1
    _syscall("keyctl", ctypes.c_int(join_session_keyring), None)


def no_new_privileges() -> None:
    """Set no_new_privs: setuid programs gain nothing."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def load_seccomp(program: bytes) -> None:
    """Load a system-call filter, for good."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    set_mode_filter = 1
    _syscall("seccomp", ctypes.c_uint(set_mode_filter), ctypes.c_uint(0), ctypes.create_string_buffer(header))


def reserve(fd: int, size: int) -> None:
    """Reserve room for the first bytes of a file, so that writing them cannot fail; its size stays as it is.

    Raises:
        OSError: there is no room, or the file system cannot do it.
    """
    _check(_libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)), "fallocate")


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
