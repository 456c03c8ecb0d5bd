"""Finds leftovers of servers and of killed commands on this machine. There should be none; this only reports them.

A leftover is something that no living process knows. Anything younger than a minute is skipped: it may belong to a
server that is just starting or ending.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aenv.client.local_platforms import LocalPaths, is_alive, socket_parent
from aenv.isolation.files import scratch_folders
from aenv.isolation.limits.cgroups import TOP, is_held

YOUNG = 60.0
_HELPERS = re.compile(r"-m aenv\.isolation\.(forking\.zygote|confined\.confined_zygote|network\.egress_proxy)\b")
"""Processes that end with their server or with its fd holder. `crash_cleanup` is none: it is to outlive its server, and
ends by itself when no server and no fd holder is left."""
_OUR_GROUP = re.compile(r"aenv-(bench-)?\d")
"""Start of the names that `cgroups.group_name` and `delegation` give. Others may begin theirs with aenv-, too."""


@dataclass(frozen=True, slots=True)
class HostLeftover:
    """A leftover without an owner."""

    kind: str
    """``cgroup``, ``folder``, ``mount`` or ``process``."""
    what: str
    hint: str
    """How to remove it."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    command: str
    age: float


class HostAudit:
    """Finds leftovers."""

    def __init__(self, runtime: Path, groups: Path = TOP, temporary: Path | None = None, young: float = YOUNG) -> None:
        """``runtime``: runtime folder of the local platforms."""
        self._runtime = runtime
        self._groups = groups
        self._temporary = temporary or Path(socket_parent())
        self._young = young
        self._processes = {process.pid: process for process in _processes()}

    def all(self) -> list[HostLeftover]:
        """Return all leftovers."""
        return [*self._cgroups(), *self._folders(), *self._mounts(), *self._orphans()]

    def _cgroups(self) -> Iterator[HostLeftover]:
        tops = [
            self._groups,
            *(path for path in _folders(self._groups) if not (self._groups / "cgroup.procs").exists()),
        ]
        with contextlib.suppress(OSError):
            own = [
                line[4:].strip() for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:4] == "0::/"
            ]
            tops += [self._groups / place for path in own for place in (path, str(Path(path).parent)) if place != "."]
        for path in dict.fromkeys(group for top in tops for group in _folders(top) if _OUR_GROUP.match(group.name)):
            known = is_held(path) or self._is_known(path.name.removeprefix("aenv-"))
            if known or self._is_young(path) or _members(path):
                continue
            yield HostLeftover("cgroup", str(path), f"find {path} -depth -type d -exec rmdir {{}} +")

    def _folders(self) -> Iterator[HostLeftover]:
        candidates = [*self._temporary.glob("aenv-serve-*"), *self._runtime.glob("*/i-*")]
        for path in candidates:
            name = path.name.removeprefix("i-")
            if is_alive(LocalPaths(self._runtime, key=path.parent.name)):  # its pid may differ in another namespace
                continue
            if path.is_dir() and _is_ours(path) and not self._is_known(name) and not self._is_young(path):
                yield HostLeftover("folder", str(path), f"rm -r {path}")
        for path in scratch_folders.abandoned():
            if not self._is_young(path):
                yield HostLeftover("folder", str(path), f"rm -r {path}")

    def _mounts(self) -> Iterator[HostLeftover]:
        """Find mounts. Sandboxes mount in their own namespaces, so none of theirs should be visible here."""
        places = (f"{self._runtime}/", f"{self._temporary}/aenv-serve-")
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/mountinfo").read_text().splitlines():
                target = line.split()[4]
                if target.startswith(places):
                    yield HostLeftover("mount", target, f"umount {target}")

    def _orphans(self) -> Iterator[HostLeftover]:
        for process in self._processes.values():
            if not _HELPERS.search(process.command) or process.age < self._young:
                continue
            parent = self._processes.get(process.parent)
            if parent is None or "aenv" not in parent.command:
                what = f"{process.pid} ({process.command[:100]})"
                yield HostLeftover(
                    "process", what, f"kill {process.pid}; it has no server, unless one is being restarted"
                )

    def _is_known(self, name: str) -> bool:
        """Return whether a living process of ours has that pid, or mentions that name."""
        if name.isdigit():
            process = self._processes.get(int(name))
            return process is not None and "aenv" in process.command
        return any(name in process.command for process in self._processes.values())

    def _is_young(self, path: Path) -> bool:
        try:
            return time.time() - path.stat().st_ctime < self._young
        except OSError:  # removed meanwhile
            return True


def _processes() -> Iterator[_Process]:
    now, ticks = float(Path("/proc/uptime").read_text().split()[0]), os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        yield _Process(int(folder.name), int(words[1]), command, now - int(words[19]) / ticks)


def _folders(path: Path) -> list[Path]:
    try:
        return [each for each in path.iterdir() if each.is_dir() and not each.is_symlink()]
    except OSError:
        return []


def _members(group: Path) -> bool:
    """Return whether a process is in the group or one level below it."""
    for path in (group, *_folders(group)):
        with contextlib.suppress(OSError):
            if (path / "cgroup.procs").read_text().strip():
                return True
    return False


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid() or os.geteuid() == 0
    except OSError:
        return False
