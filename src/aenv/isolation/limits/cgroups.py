"""What a sandbox may use: control groups where the host lets us make them, resource limits everywhere."""

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
MAX_SPARES = 64  # groups without a sandbox
LOCKED_MODE = 0o700
"""The mode of a group that its owner holds a lock of; without that lock it is abandoned."""
MAX_RESIDUE = 1 << 20
"""Bytes that a group without processes may still count, mostly ahead, and be as good as a new one."""
_USAGE_FILES = (
    ("memory_bytes", "memory.usage_in_bytes"), ("memory_bytes", "memory.current"),
    ("processes", "pids.current"), ("cpu_nanoseconds", "cpuacct.usage"), ("cpu_nanoseconds", "cpu.stat"),
)  # fmt: skip
_OOM_FILES = ("memory.events", "memory.oom_control")


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds for one sandbox."""

    memory: int = 2 << 30
    """Bytes, files in the writable layer included."""
    cpus: float = 1.0
    processes: int = 512
    disk: int = 512 << 20
    """Bytes in the writable layer."""
    open_files: int = 4096


def group_name(prefix: str = "aenv") -> str:
    """Return the name of the group that all of this process's groups are below, unless it is told another."""
    return f"{prefix}-{os.getpid()}-{_token(os.getpid())}"


@cache
def _token(pid: int) -> str:
    """What tells this process from one with the same number in another process namespace."""
    return secrets.token_hex(4)


class Cgroups:
    """Control groups below one of our own; none where this user may not make any.

    Groups that a killed process has left behind are removed first. The one of our own is held until `remove`, or until
    this process ends: see `is_held`.
    """

    def __init__(self, name: str, top: Path = TOP) -> None:
        sweep(top=top)
        self._locks: list[int] = []
        self._roots = _writable_roots(name, top, self._locks)
        self._unified = (top / "cgroup.controllers").exists()
        self._spare: list[tuple[Limits, Cgroup]] = []
        """Those that have not been used for the longest time come first."""

    @property
    def controllers(self) -> list[str]:
        """What can be limited here."""
        return sorted(self._roots)

    def make(self, limits: Limits) -> Cgroup | None:
        """A group for one sandbox."""
        if not self._roots:
            return None
        for place, (kind, group) in enumerate(self._spare):
            if kind == limits:
                del self._spare[place]
                return group
        return self._create(limits)

    def make_spare(self, limits: Limits) -> None:
        """Have one ready, for the next who asks: making it takes half a millisecond."""
        if self._roots and all(kind != limits for kind, _ in self._spare):
            self._add_spare(limits, self._create(limits))

    def give_back(self, limits: Limits, group: Cgroup) -> None:
        """Its sandbox is gone. Another one may have it: to end a group and make one takes a millisecond, most of it
        the kernel's later on. The one that was given back first is given out first, as it may have used up the CPU of
        the tenth of a second that it was in.
        """
        again = group.recycled()
        if again is None:
            group.remove()
        else:
            self._add_spare(limits, again)

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
        """Take away all groups that have no processes."""
        self._spare.clear()
        for root in set(self._roots.values()):
            for path in root.iterdir() if root.is_dir() else ():
                if path.is_dir() and path not in but:
                    Cgroup([path]).remove()

    def remove(self) -> None:
        """Take everything of ours away."""
        self.clear()
        for root in set(self._roots.values()):
            with contextlib.suppress(OSError):
                root.rmdir()
        while self._locks:
            os.close(self._locks.pop())


def sweep(prefix: str = "aenv", top: Path = TOP) -> None:
    """Remove groups named ``prefix-*`` that nobody holds any more. Those with processes stay, until a later time."""
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
    """Return whether a process that lives, in whatever process namespace, holds this group."""
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
    """Make a group and lock its folder: the kernel takes the lock away when this process ends, however it does."""
    while True:
        path.mkdir(exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            os.chmod(path, LOCKED_MODE)  # only now: nobody takes a group for abandoned that does not have this mode
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                locks.append(fd)
                return
        except FileNotFoundError:  # it was one from before, and somebody has just removed it
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_marked(path: Path) -> bool:
    return stat.S_IMODE(os.stat(path).st_mode) == LOCKED_MODE


def _lock_orphan(path: Path) -> int | None:
    """A descriptor that keeps others from holding the group while it is open; None if somebody holds it, or may."""
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
    """The folders that are one sandbox's group."""

    paths: list[Path]
    before: int = 0
    """Nanoseconds of CPU that sandboxes have used that had it before."""
    _usage_files: list[tuple[str, str]] = field(default_factory=list, compare=False, repr=False)
    """What is counted, and the files that say so, as far as they are known to be there: to try all takes longer."""
    _oom_file: list[str] = field(default_factory=list, compare=False, repr=False)
    """The same for the file that counts out-of-memory kills."""

    def open_for_joining(self) -> list[int]:
        """Descriptors; a process with one thread that writes 0 to each of them is in the group.

        Version 1 has a file for threads, too: a thread that moves itself alone waits for nobody, while moving a
        process waits until every CPU has been through the scheduler, which takes the kernel some ten milliseconds.
        """
        return [_open_first(f"{path}/tasks", f"{path}/cgroup.procs") for path in self.paths]

    def usage(self) -> dict[str, int]:
        """Bytes of memory and processes now, nanoseconds of CPU so far; what the host counts of these."""
        used: dict[str, int] = {}
        known, found = self._usage_files, []
        for name, file in known or [(name, f"{path}/{file}") for path in self.paths for name, file in _USAGE_FILES]:
            with contextlib.suppress(OSError, ValueError):
                words = _read(file).split()
                microseconds = words.index(b"usage_usec") + 1 if file.endswith("/cpu.stat") else None
                used[name] = int(words[0]) if microseconds is None else int(words[microseconds]) * 1000
                found.append((name, file))
        if not known:
            known.extend(found)
        if "cpu_nanoseconds" in used:
            used["cpu_nanoseconds"] -= self.before
        return used

    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed at its memory limit."""
        known = self._oom_file
        for file in known or [f"{path}/{file}" for path in self.paths for file in _OOM_FILES]:
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = _read(file).split()
                kills = int(words[words.index(b"oom_kill") + 1])
                known[:] = [file]
                return kills
        return 0

    def recycled(self) -> Cgroup | None:
        """For another sandbox; None when something is left in it, or is counted for it, that is not that one's."""
        used = self.usage()
        if used.get("processes", 1) or used.get("memory_bytes", 0) > MAX_RESIDUE or self.oom_kills():
            return None
        return replace(self, before=self.before + used.get("cpu_nanoseconds", 0))

    def remove(self) -> None:
        """The folders go once the processes have; a group that is busy stays."""
        for path in self.paths:
            with contextlib.suppress(OSError):
                path.rmdir()


def _writable_roots(name: str, top: Path, locks: list[int]) -> dict[str, Path]:
    """Make the group of this name for every controller that can be used here, and hold it."""
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
    """Version 2: beside our own group rather than below it, as only a group without processes can limit others."""
    for parent in _unified_parents(top):
        path = parent / name
        with contextlib.suppress(OSError):
            _create_locked(path, locks)
            enabled = [controller for controller in CONTROLLERS if _enable(controller, parent, path)]
            if set(CONTROLLERS) - {"cpu"} <= set(enabled):  # else the limits of the process do more
                return dict.fromkeys(enabled, path)
            os.close(locks.pop())
            path.rmdir()
    return {}


def _unified_parents(top: Path) -> list[Path]:
    """The groups that one of our own may be in: the one above ours, and the top."""
    own = own_group(top)
    parents = (top,) if own == top else (own.parent, top)
    return [parent for parent in dict.fromkeys(parents) if _can_have_children(parent)]


def _can_have_children(group: Path) -> bool:
    """Not if it has processes: its controllers would refuse, or leave groups below it that nobody can join."""
    try:
        return not (group / "cgroup.type").exists() or not (group / "cgroup.procs").read_text().strip()
    except OSError:
        return False


def own_group(top: Path = TOP) -> Path:
    """The group of version 2 that this process is in."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return top / next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")


def _enable(controller: str, parent: Path, path: Path) -> bool:
    """Have a controller limit what is below ``path``. A user may where the system has handed them the group."""
    try:
        for place in (parent, path):
            if controller not in (place / "cgroup.subtree_control").read_text().split():
                (place / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return False
    return True


def _limit_files(controller: str, limits: Limits, *, unified: bool) -> list[tuple[str, str]]:
    """What to write into which files of a group."""
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
    """Most of making a group is this, so it is done without ceremony."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError:
        if not path.endswith("memory.swap.max"):  # which not every kernel counts
            raise


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _open_first(*paths: str) -> int:
    """The first of them that is there."""
    for path in paths[:-1]:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    return os.open(paths[-1], os.O_WRONLY | os.O_CLOEXEC)


def set_resource_limits(limits: Limits, *, alone: bool) -> None:
    """Set limits of the process.

    ``alone``: there is no control group, so these have to do. Memory that they leave out is refused as far as a filter
    can: see `seccomp.countable`. This process must have the right to load one.
    """
    # 1 and not 0: a core goes to the host's crash handler, where there is one, whatever the limit; but not at 1.
    _lower_limit(resource.RLIMIT_CORE, 1)
    _lower_limit(resource.RLIMIT_NOFILE, limits.open_files)
    if alone:
        _lower_limit(resource.RLIMIT_DATA, limits.memory)
        from aenv.isolation.kernel import (  # here: the other limits are imported on systems that are not Linux
            linux,
            seccomp,
        )

        linux.load_seccomp(seccomp.countable())


def raise_open_files_limit() -> None:
    """Let this process have as many descriptors as it may: it needs some for every sandbox."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def limit_processes(limits: Limits, pid: int = 0) -> None:
    """For a process, its own by default, in a user namespace of its own: the kernel counts all that are in there."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
    most = limits.processes if hard == resource.RLIM_INFINITY else min(limits.processes, hard)
    resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))


def limit_parent_processes() -> None:
    """The same for a preloaded parent. All of its forks count for it, so it may have a large share, but not all that
    the host's user may have.
    """
    _, hard = resource.prlimit(0, resource.RLIMIT_NPROC)
    if hard != resource.RLIM_INFINITY:
        part, whole = user_shares.PARENT
        most = max(1, hard * part // whole)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def counts_processes_per_namespace() -> bool:
    """Whether this kernel counts a user's processes for each user namespace; older ones count all on the host."""
    major, _, rest = os.uname().release.partition(".")
    minor = "".join(itertools.takewhile(str.isdigit, rest))
    return (int(major), int(minor or 0)) >= (5, 14)


def _lower_limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
