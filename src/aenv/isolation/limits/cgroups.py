"""Resource limits of a sandbox: control groups where this user may create them, rlimits everywhere."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import resource
import secrets
import stat
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from aenv.isolation.limits import user_shares

TOP = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "pids", "cpu")
PERIOD = 100_000  # microseconds
MAX_SPARES = 512
"""Idle groups to keep for reuse while instances come and go. With 64, two batches of 64 created and removed groups all
the time, at a fifth of the server's CPU time and more in the kernel."""
MAX_IDLE_SPARES = 64
"""Idle groups to keep in quiet times; see `Cgroups.trim`."""
TRIM_BATCH = 16
LOCKED_MODE = 0o700
"""Mode of a group whose owner holds a lock on its folder. A group with this mode and no lock is an orphan."""
MAX_RESIDUE = 1 << 20
"""Bytes that the kernel may still charge to an empty group, mostly batched ahead, for the group to be reusable."""
_USAGE_FILES = (
    ("memory_bytes", "memory.usage_in_bytes"), ("memory_bytes", "memory.current"),
    ("processes", "pids.current"), ("cpu_nanoseconds", "cpuacct.usage"), ("cpu_nanoseconds", "cpu.stat"),
)  # fmt: skip
_OOM_FILES = ("memory.events", "memory.oom_control")


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds for one sandbox."""

    memory: int = 2 << 30
    """Bytes, including files in the writable layer."""
    cpus: float = 1.0
    processes: int = 512
    disk: int = 512 << 20
    """Bytes in the writable layer."""
    open_files: int = 4096


def group_name(prefix: str = "aenv") -> str:
    """Return the default name of the group that holds all groups of this process."""
    return f"{prefix}-{os.getpid()}-{_token(os.getpid())}"


@cache
def _token(pid: int) -> str:
    """Return a random token that tells this process from one with the same pid in another pid namespace."""
    return secrets.token_hex(4)


class Cgroups:
    """Control groups below one that this process owns; empty where this user may not create any.

    Orphaned groups of killed processes are removed first. The owned group stays locked until `remove`, or until this
    process ends: see `is_held`.
    """

    def __init__(self, name: str, top: Path = TOP) -> None:
        sweep(top=top)
        self._locks: list[int] = []
        self._roots = _writable_roots(name, top, self._locks)
        self._unified = (top / "cgroup.controllers").exists()
        self._spare: list[tuple[Limits, Cgroup]] = []
        """Idle groups, least recently used first."""

    @property
    def controllers(self) -> list[str]:
        """Controllers that can be used here, sorted."""
        return sorted(self._roots)

    def make(self, limits: Limits) -> Cgroup | None:
        """Return a group for one sandbox, a spare if there is one; None without control groups."""
        if not self._roots:
            return None
        for index, (spare_limits, group) in enumerate(self._spare):
            if spare_limits == limits:
                del self._spare[index]
                return group
        return self._create(limits)

    def make_spare(self, limits: Limits) -> None:
        """Keep one group with these limits ready for the next `make`: creating one takes half a millisecond."""
        if self._roots and all(spare_limits != limits for spare_limits, _ in self._spare):
            self._add_spare(limits, self._create(limits))

    def give_back(self, limits: Limits, group: Cgroup) -> None:
        """Return the group of a sandbox that has ended, for reuse by another one.

        Removing a group and creating one takes a millisecond, most of it in the kernel later on. Spares are reused
        first in, first out: a group may have used up the CPU quota of its current period of a tenth of a second.
        """
        recycled = group.recycled()
        if recycled is None:
            group.remove()
        else:
            self._add_spare(limits, recycled)

    def trim(self) -> bool:
        """Remove some idle groups beyond `MAX_IDLE_SPARES`; return whether there are more."""
        for _ in range(min(TRIM_BATCH, len(self._spare) - MAX_IDLE_SPARES)):
            self._spare.pop(0)[1].remove()
        return len(self._spare) > MAX_IDLE_SPARES

    def _add_spare(self, limits: Limits, group: Cgroup) -> None:
        self._spare.append((limits, group))
        if len(self._spare) > MAX_SPARES:
            self._spare.pop(0)[1].remove()

    def _create(self, limits: Limits) -> Cgroup:
        name = secrets.token_hex(6)
        paths = {controller: root / name for controller, root in self._roots.items()}
        group = Cgroup(sorted(set(paths.values())))
        try:
            for path in group.paths:
                path.mkdir()
            for controller, path in paths.items():
                for file, text in _limit_files(controller, limits, unified=self._unified):
                    _write(f"{path}/{file}", text)
        except OSError:
            group.remove()
            raise
        return group

    def clear(self, *, but: Collection[Path] = ()) -> None:
        """Remove all groups without processes, except those in ``but``."""
        self._spare.clear()
        for root in set(self._roots.values()):
            for path in root.iterdir() if root.is_dir() else ():
                if path.is_dir() and path not in but:
                    Cgroup([path]).remove()

    def remove(self) -> None:
        """Remove all groups of this process and release their locks."""
        self.clear()
        for root in set(self._roots.values()):
            with contextlib.suppress(OSError):
                root.rmdir()
        while self._locks:
            os.close(self._locks.pop())


def sweep(prefix: str = "aenv", top: Path = TOP) -> None:
    """Remove orphaned groups named ``prefix-*``. Groups that still have processes stay until a later sweep."""
    parents = _unified_parents(top) if (top / "cgroup.controllers").exists() else [
        top / controller for controller in CONTROLLERS
    ]  # fmt: skip
    for path in (path for parent in parents for path in parent.glob(f"{prefix}-*")):
        with contextlib.suppress(OSError):
            fd = _lock_orphan(path)
            if fd is not None:
                try:
                    Cgroup([below for below in path.iterdir() if below.is_dir()]).remove()
                    path.rmdir()
                finally:
                    os.close(fd)


def is_held(group: Path) -> bool:
    """Return True if a live process, in whatever pid namespace, holds the lock of this group."""
    try:
        if not _is_marked(group):
            return False
        fd = _lock_orphan(group)
    except OSError:
        return False
    if fd is not None:
        os.close(fd)
    return fd is None


def _create_locked(path: Path, locks: list[int]) -> None:
    """Create a group and lock its folder; the kernel releases the lock when this process ends, even by SIGKILL."""
    while True:
        path.mkdir(exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            os.chmod(path, LOCKED_MODE)  # after the lock: a group is taken for an orphan only if it has this mode
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                locks.append(fd)
                return
        except FileNotFoundError:  # an older group of this name, which another process has just removed
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_marked(path: Path) -> bool:
    return stat.S_IMODE(os.stat(path).st_mode) == LOCKED_MODE


def _lock_orphan(path: Path) -> int | None:
    """Lock an orphaned group exclusively and return the descriptor; None if it has, or may get, an owner."""
    if not _is_marked(path):
        return None
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Control group of one sandbox: a folder per hierarchy."""

    paths: list[Path]
    before: int = 0
    """Nanoseconds of CPU used by earlier sandboxes in this group."""
    _usage_files: list[tuple[str, str]] = field(default_factory=list, compare=False, repr=False)
    """Cache of the usage files that exist, with what each counts: trying all of them takes longer."""
    _oom_file: list[str] = field(default_factory=list, compare=False, repr=False)
    """Cache of the file that counts out-of-memory kills."""
    _join_files: list[str] = field(default_factory=list, compare=False, repr=False)
    """Cache of the files to write to for joining."""

    def open_for_joining(self) -> list[int]:
        """Open file descriptors for joining; a single-threaded process that writes 0 to each is in the group.

        Version 1 also has a file for threads. Moving one thread does not wait, while moving a process waits for an RCU
        grace period, which takes some ten milliseconds.
        """
        if not self._join_files:
            self._join_files.extend(_join_file(path) for path in self.paths)
        opened: list[int] = []
        try:
            for file in self._join_files:
                opened.append(os.open(file, os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        return opened

    def usage(self) -> dict[str, int]:
        """Return current memory bytes and processes, and CPU nanoseconds so far, as far as the host counts them."""
        used: dict[str, int] = {}
        cached, found = self._usage_files, []
        for name, file in cached or [(name, f"{path}/{file}") for path in self.paths for name, file in _USAGE_FILES]:
            with contextlib.suppress(OSError, ValueError):
                words = _read(file).split()
                microseconds = words.index(b"usage_usec") + 1 if file.endswith("/cpu.stat") else None
                used[name] = int(words[0]) if microseconds is None else int(words[microseconds]) * 1000
                found.append((name, file))
        if not cached:
            cached.extend(found)
        if "cpu_nanoseconds" in used:
            used["cpu_nanoseconds"] -= self.before
        return used

    def oom_kills(self) -> int:
        """Return how many processes of the group the kernel has killed at its memory limit."""
        cached = self._oom_file
        for file in cached or [f"{path}/{file}" for path in self.paths for file in _OOM_FILES]:
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = _read(file).split()
                kills = int(words[words.index(b"oom_kill") + 1])
                cached[:] = [file]
                return kills
        return 0

    def recycled(self) -> Cgroup | None:
        """Return the group for use by another sandbox; None if processes, memory or OOM kills are left in it."""
        used = self.usage()
        if used.get("processes", 1) or used.get("memory_bytes", 0) > MAX_RESIDUE or self.oom_kills():
            return None
        return replace(self, before=self.before + used.get("cpu_nanoseconds", 0))

    def remove(self) -> None:
        """Remove the folders; a group that still has processes stays."""
        for path in self.paths:
            with contextlib.suppress(OSError):
                path.rmdir()


def _writable_roots(name: str, top: Path, locks: list[int]) -> dict[str, Path]:
    """Create and lock the group of this name for every controller that can be used here."""
    if (top / "cgroup.controllers").exists():
        return _unified_roots(name, top, locks)
    roots: dict[str, Path] = {}
    for controller in CONTROLLERS:
        path = top / controller / name
        with contextlib.suppress(OSError):
            _create_locked(path, locks)
            roots[controller] = path
    return roots


def _unified_roots(name: str, top: Path, locks: list[int]) -> dict[str, Path]:
    """Version 2: create a sibling of our own group, not a child: only a group without processes can limit children."""
    for parent in _unified_parents(top):
        path = parent / name
        with contextlib.suppress(OSError):
            _create_locked(path, locks)
            enabled = [controller for controller in CONTROLLERS if _enable(controller, parent, path)]
            if set(CONTROLLERS) - {"cpu"} <= set(enabled):  # else rlimits bound more
                return dict.fromkeys(enabled, path)
            os.close(locks.pop())
            path.rmdir()
    return {}


def _unified_parents(top: Path) -> list[Path]:
    """Return possible parents of a group of ours: the parent of this process's group, and the top."""
    own = own_group(top)
    parents = (top,) if own == top else (own.parent, top)
    return [parent for parent in dict.fromkeys(parents) if _can_have_children(parent)]


def _can_have_children(group: Path) -> bool:
    """Return False for a group with processes: enabling controllers fails there, or leaves children no one can join."""
    try:
        return not (group / "cgroup.type").exists() or not (group / "cgroup.procs").read_text().strip()
    except OSError:
        return False


def own_group(top: Path = TOP) -> Path:
    """Return the version 2 group that this process is in."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return top / next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")


def _enable(controller: str, parent: Path, path: Path) -> bool:
    """Enable a controller for children of ``path``. Ordinary users may do so where the group is delegated to them."""
    try:
        for group in (parent, path):
            if controller not in (group / "cgroup.subtree_control").read_text().split():
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return False
    return True


def _limit_files(controller: str, limits: Limits, *, unified: bool) -> list[tuple[str, str]]:
    """Return which files of a group to write, and their contents."""
    if controller == "memory":
        most = str(limits.memory)
        return [("memory.max", most), ("memory.swap.max", "0")] if unified else [("memory.limit_in_bytes", most)]
    if controller == "pids":
        return [("pids.max", str(limits.processes))]
    quota = int(limits.cpus * PERIOD)
    if unified:
        return [("cpu.max", f"{quota} {PERIOD}")]
    return [("cpu.cfs_period_us", str(PERIOD)), ("cpu.cfs_quota_us", str(quota))]


def _write(path: str, text: str) -> None:
    """Write a small file with bare system calls: this is most of the cost of creating a group."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError:
        if not path.endswith("memory.swap.max"):  # absent on kernels without swap accounting
            raise


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _join_file(group: Path) -> str:
    """Return the file of a group that a process writes to, to join it."""
    threads = f"{group}/tasks"
    return threads if os.path.exists(threads) else f"{group}/cgroup.procs"


def set_resource_limits(limits: Limits, *, alone: bool) -> None:
    """Set the rlimits of this process.

    ``alone``: there is no control group, so rlimits are the only bound. A seccomp filter then refuses memory that they
    do not count, as far as it can: see `seccomp.countable`. This process must be allowed to load a filter.
    """
    # 1 and not 0: the kernel pipes a core to the host's crash handler at any limit but 1.
    _lower_limit(resource.RLIMIT_CORE, 1)
    _lower_limit(resource.RLIMIT_NOFILE, limits.open_files)
    if alone:
        _lower_limit(resource.RLIMIT_DATA, limits.memory)
        from aenv.isolation.kernel import (  # imported here: `Limits` is also used on systems other than Linux
            linux,
            seccomp,
        )

        linux.load_seccomp(seccomp.countable())


def raise_open_files_limit(proc: Path = Path("/proc")) -> int:
    """Raise the limit of open file descriptors as far as this user may, and return it: every sandbox takes some."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # only a privileged process may raise the hard limit
        highest = max(most, int((proc / "sys/fs/nr_open").read_text()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
        return highest
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def limit_processes(limits: Limits, pid: int = 0) -> None:
    """Limit the processes of a user namespace through one of its processes, by default this one."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
    most = limits.processes if hard == resource.RLIM_INFINITY else min(limits.processes, hard)
    resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))


USER_PROCESSES = 8192
"""Processes of one user where neither a control group nor a namespace counts those of one sandbox."""


def limit_processes_of_user() -> None:
    """Limit the processes of this user, all together: this process can start none beyond that."""
    _lower_limit(resource.RLIMIT_NPROC, USER_PROCESSES)


def limit_parent_processes() -> None:
    """Limit the processes of a preloaded parent: all its forks count, so it gets a large share of the host user's."""
    _, hard = resource.prlimit(0, resource.RLIMIT_NPROC)
    if hard != resource.RLIM_INFINITY:
        numerator, denominator = user_shares.PARENT
        most = max(1, hard * numerator // denominator)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def counts_processes_per_namespace() -> bool:
    """Return True if the kernel counts processes per user namespace (since 5.14); older ones count per host user."""
    major, _, rest = os.uname().release.partition(".")
    minor = "".join(itertools.takewhile(str.isdigit, rest))
    return (int(major), int(minor or 0)) >= (5, 14)


def _lower_limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
