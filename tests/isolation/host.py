"""Host side of the tests: a local platform of their own, and what it leaves on the host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aenv.client import local_lease
from aenv.sdk.blocking import LoopThread, SyncEnvironment
from tests.conftest import left_in, stop_all
from tests.waiting import wait_while

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Process:
    """Process of the host, identified by pid and start time, as pids are reused."""

    pid: int
    started: int
    parent: int = field(compare=False)
    state: str = field(compare=False)

    @property
    def alive(self) -> bool:
        now = _process(self.pid)
        if now is None or now.started != self.started:
            return False
        try:  # the main thread may be gone before the others; the last thread closes the files
            threads = len(os.listdir(f"/proc/{self.pid}/task"))
        except OSError:
            return False
        return now.state not in "ZX" or threads > 1

    @property
    def command(self) -> str:
        return _read(f"/proc/{self.pid}/cmdline").replace("\0", " ").strip()

    @property
    def name(self) -> str:
        return _read(f"/proc/{self.pid}/comm").strip()

    @property
    def depth(self) -> int:
        """Number of nested pid namespaces: 1 on the host, 2 in a zygote, 3 or more in a sandbox."""
        return len(self._ids)

    @property
    def is_first(self) -> bool:
        """True for the init process of a pid namespace."""
        return self._ids[-1:] == ["1"]

    @property
    def _ids(self) -> list[str]:
        status = _read(f"/proc/{self.pid}/status")
        return next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])

    def has_project(self, project: Path) -> bool:
        """Return True if the process has this project mounted."""
        return f"{project.parent.name}/{project.name} /.project " in _read(f"/proc/{self.pid}/mountinfo")

    @property
    def mounted_devices(self) -> set[str]:
        """Device numbers (major:minor) of the mounts in the process's namespace."""
        return {line.split()[2] for line in _read(f"/proc/{self.pid}/mountinfo").splitlines()}

    @property
    def is_preforked(self) -> bool:
        """True for a pre-forked sandbox that is not assigned yet: it has its mounts but no seccomp filter of its own.

        Its file descriptors would tell more, but only to root.
        """
        return self.has_sandbox_mounts and _filters(str(self.pid)) == _filters("self")

    @property
    def has_sandbox_mounts(self) -> bool:
        """True if the process has the mounts of a sandbox, whether it runs the author's code or is about to."""
        return " /app " in _read(f"/proc/{self.pid}/mountinfo")

    @property
    def runs_author_code(self) -> bool:
        """True if the process runs the author's code, or may at any time."""
        return self.has_sandbox_mounts and not self.is_traced and _filters(str(self.pid)) != _filters("self")

    @property
    def is_instance(self) -> bool:
        """True for the init process of an instance."""
        return self.is_first and self.runs_author_code

    @property
    def is_preloaded(self) -> bool:
        """True for a preloaded parent, which instances are forked from."""
        return self.runs_author_code and not self.is_first and "aenv.isolation.forking.zygote" in self.command

    @property
    def is_traced(self) -> bool:
        """True if a tracer has stopped the process."""
        now = _process(self.pid)
        return now is not None and now.state == "t"

    @property
    def own_memory(self) -> int:
        """Unshared memory in bytes."""
        lines = _read(f"/proc/{self.pid}/smaps_rollup").splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _filters(process: str) -> list[str]:
    """Return the line of /proc/PID/status that counts seccomp filters."""
    return re.findall(r"^Seccomp_filters:.*", _read(f"/proc/{process}/status"), re.MULTILINE)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _process(pid: int) -> Process | None:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return Process(pid, int(fields[19]), int(fields[1]), fields[0]) if fields else None


def processes() -> dict[int, Process]:
    found = (_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


class Platform:
    """A runtime folder of the tests, and all processes that belong to it."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self._seen: set[Process] = set()
        self._servers: set[int] = set()  # pids with control groups; other pids may have been reused

    @property
    def paths(self) -> local_lease.LocalPaths:
        return local_lease.LocalPaths(self.runtime)

    @property
    def variables(self) -> dict[str, str]:
        return {"AENV_RUNTIME_DIR": str(self.runtime)}

    def server(self) -> Process | None:
        """Return the process that listens on the platform's socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.paths.socket))
            except OSError:
                return None
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return _process(struct.unpack("3i", credentials)[0])

    def processes(self) -> list[Process]:
        """Return all live processes of this runtime folder, parents first; a process once seen is remembered."""
        everything = processes()
        mark = f"AENV_RUNTIME_DIR={self.runtime}"
        ours = {
            pid
            for pid in everything
            if pid != os.getpid()
            and (
                str(self.runtime) in _read(f"/proc/{pid}/cmdline") or mark in _read(f"/proc/{pid}/environ").split("\0")
            )
            and ("aenv.cli" in _read(f"/proc/{pid}/cmdline") or "crash_cleanup" in _read(f"/proc/{pid}/cmdline"))
        }
        grown = True
        while grown:
            below = {p.pid for p in everything.values() if p.parent in ours} - ours
            ours |= below
            grown = bool(below)
        self._seen |= {everything[pid] for pid in ours}
        self._servers |= {pid for pid in ours if "serve --local" in everything[pid].command}
        return sorted((p for p in self._seen if p.alive), key=lambda p: (p.started, p.pid))

    def servers(self) -> list[Process]:
        return [p for p in self.processes() if "serve --local" in p.command and p.depth == 1]

    def zygotes(self) -> list[Process]:
        """Return both processes of each zygote: the outer, which waits, and the inner, which forks."""
        found = [p for p in self.processes() if "aenv.isolation.forking.zygote" in p.command]
        return [p for p in found if p.depth == 1 or (p.depth == 2 and p.is_first)]

    def instances(self) -> list[Process]:
        """Return the init process of each sandbox."""
        return [p for p in self.processes() if p.is_instance]

    def preforked_of(self, project: Path) -> list[Process]:
        """Return the pre-forked sandboxes of a project."""
        return [p for p in self.processes() if p.is_first and p.is_preforked and p.has_project(project)]

    def instances_of(self, project: Path) -> list[Process]:
        """Return the init processes of a project's instances."""
        return [p for p in self.instances() if p.has_project(project)]

    def cgroups(self) -> list[Path]:
        """Return the control groups of all servers seen so far: aenv-PID-*, and systemd's scopes aenv-PID-*.scope."""
        names = {f"aenv-{pid}" for pid in self._servers}
        if (CGROUPS / "cgroup.controllers").exists():  # wherever systemd has put the scope
            found = (Path(folder, name) for folder, names_there, _ in os.walk(CGROUPS) for name in names_there)
        else:
            found = (path for name in ("memory", "pids", "cpu") for path in (CGROUPS / name).iterdir())
        return sorted(path for path in found if path.name.rpartition("-")[0] in names)

    def left_behind(self) -> list[str]:
        """Return processes, groups, mounts and files that should be gone after the server has ended."""
        left = [f"process {p.pid} {p.command}" for p in self.processes()]
        left += [f"cgroup {path}" for path in self.cgroups()]
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        left += [f"mount {line}" for line in mounts if line.startswith("aenv ") or str(self.runtime) in line]
        left += [f"file {name}" for name in left_in(self.runtime) if not name.endswith("/platform.sock")]
        left += [f"server {server}"] if (server := self.server()) else []
        return left

    def log(self) -> str:
        return _read(str(self.paths.log))

    def stop(self) -> None:
        """Stop the platform like ``aenv local stop``, and fail if it leaves anything behind."""
        wait_while(lambda: self.servers() and not self.server(), "the server neither serves nor ends")
        stop_all(self.runtime)
        wait_while(self.left_behind, "left behind by the platform")


@contextlib.contextmanager
def own_platform() -> Iterator[Platform]:
    """Run a private platform and check that it leaves nothing behind."""
    runtime = Path(tempfile.mkdtemp(prefix="ae", dir="/tmp"))  # short: a socket path has at most 107 bytes
    platform = Platform(runtime)
    forget_lease()  # an earlier module of this process may have left one on another platform
    try:
        yield platform
        platform.stop()
    finally:
        for process in platform.processes():
            process.kill()
        forget_lease()
        shutil.rmtree(runtime, ignore_errors=True)


def open_instances(
    open_ones: contextlib.ExitStack, project: Path, count: int, is_last: Callable[[Any], bool]
) -> list[SyncEnvironment]:
    """Open instances of a project, and more until what the last one's tool ``about`` says is accepted.

    A busy machine still hands out instances that import their code themselves when a preloaded parent is there.
    """
    envs = [open_ones.enter_context(SyncEnvironment(str(project))) for _ in range(count)]
    while not is_last(told := envs[-1].call_tool("about", {}, 60).data):
        assert len(envs) < count + 50, f"no instance of {len(envs)} is as expected: {told}"
        envs.append(open_ones.enter_context(SyncEnvironment(str(project))))
    return envs


def start_shared_threads() -> None:
    """Start the threads that blocking handles share, so that the leak check does not blame a test for them."""
    LoopThread.run(asyncio.to_thread(int))


def forget_lease() -> None:
    """Close this process's lease on a platform, so that it can use another one; programs never do that."""
    local_lease.drop()


def limited_by(platform: Platform, controller: str) -> bool:
    """Return True if this user can limit the controller's resource with control groups."""
    if (CGROUPS / "cgroup.controllers").exists():
        return any(controller in _read(str(path / "cgroup.controllers")).split() for path in platform.cgroups())
    return any(path.parent.name == controller for path in platform.cgroups())


def systemd_delegates_groups() -> bool:
    """Return True if systemd delegates control groups of version 2 to this user."""
    bus = Path("/run/dbus/system_bus_socket" if os.geteuid() == 0 else f"/run/user/{os.geteuid()}/bus")
    return (CGROUPS / "cgroup.controllers").exists() and Path("/run/systemd/system").is_dir() and bus.is_socket()
