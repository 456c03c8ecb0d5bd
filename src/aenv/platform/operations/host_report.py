"""``aenv doctor``: what this machine can do, what is missing, and how to get it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from aenv import config
from aenv.errors import AEnvError
from aenv.isolation.host_support import unsupported_reason
from aenv.isolation.kernel import linux, seccomp
from aenv.isolation.limits.cgroups import CONTROLLERS, Cgroups, counts_processes_per_namespace, group_name
from aenv.platform.operations.engine_factory import check_host, engine_names
from aenv.platform.operations.settings import DEFAULT_ENGINE
from aenv.project.image_build import find_builder
from aenv.storage.open_url import data_folder

State = Literal["ok", "missing", "broken"]
FILES = 16384
"""Open files for a server with a thousand instances and their callers."""
ROOM = 1 << 30
"""Bytes."""


@dataclass(frozen=True, slots=True)
class HostFinding:
    """One thing that was looked at."""

    what: str
    state: State
    """``missing``: something is not there that not everybody needs; ``broken``: without it nothing works."""
    said: str
    hint: str = ""


class _Missing(Exception):
    """It cannot do that."""

    def __init__(self, said: str, hint: str = "", state: State = "missing") -> None:
        super().__init__(said)
        self.said, self.hint, self.state = said, hint, state


def examine() -> list[HostFinding]:
    """Look at everything. The first finding is about the native engine: whether sandboxes can be made at all."""
    looks: dict[str, Callable[[], str]] = {
        "native engine": _native,
        "user namespaces": _namespaces,
        "system-call filter": _filter,
        "control groups": _groups,
        "overlay file system": _overlay,
        "mounts for another user": _idmap,
        **{f"engine {name}": partial(_engine, name) for name in engine_names() if name != DEFAULT_ENGINE},
        "packages": _packages,
        "image builder": _builder,
        "open files": _files,
        "disk": _disk,
    }
    found = []
    for what, look in looks.items():
        try:
            found.append(HostFinding(what, "ok", look()))
        except _Missing as error:
            found.append(HostFinding(what, error.state, error.said, error.hint))
        except (AEnvError, OSError) as error:
            found.append(HostFinding(what, "missing", str(error)))
    return found


def _native() -> str:
    reason = unsupported_reason()
    if reason is None:
        return "instances are isolated sandboxes, made without any service"
    said, _, command = reason.partition("; allow them with: ")
    hint = f"Run: {command}" if command else "Or have instances without any isolation: AENV_ENGINE=process"
    raise _Missing(said, hint, "broken")


def _namespaces() -> str:
    limit = _number("/proc/sys/user/max_user_namespaces")
    if limit == 0:
        raise _Missing("this kernel allows none", "Run: sudo sysctl user.max_user_namespaces=15000", "broken")
    who = "as root" if os.geteuid() == 0 else "as an ordinary user"
    apart = "" if counts_processes_per_namespace() else "; this kernel counts processes of all sandboxes together"
    return f"up to {limit:,}, {who}{apart}" if limit is not None else f"{who}{apart}"


def _filter() -> str:
    if not seccomp.supported():
        raise _Missing(f"there is none for {linux.MACHINE} yet", state="broken")
    if not any(line.startswith("Seccomp:") for line in Path("/proc/self/status").read_text().splitlines()):
        raise _Missing("this kernel has no seccomp", "Use one with CONFIG_SECCOMP_FILTER.", "broken")
    return f"seccomp, {linux.MACHINE}"


def _groups() -> str:
    groups = Cgroups(group_name())
    try:
        there = groups.controllers
    finally:
        groups.remove()
    version = "2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "1"
    if set(there) >= set(CONTROLLERS):
        return f"version {version}: memory, processes and CPU of an instance are limited"
    lacking = ", ".join(name for name in CONTROLLERS if name not in there)
    hint = "Run as root, or with a delegated group: systemd-run --user --scope -p Delegate=yes aenv serve"
    raise _Missing(f"version {version}: {lacking} cannot be limited here{_uncounted(there)}", hint)


def _uncounted(controllers: list[str]) -> str:
    """What the limits of processes leave out, where nobody counts an instance's memory as a whole."""
    if "memory" in controllers:
        return ""
    return (
        "; memory is held to a limit per process. Not limited then: memory that processes share without a file "
        "(an anonymous mapping). Files in memory without a name (memfd) are refused, /dev/shm counts as disk, and a "
        f"segment of System V shared memory has at most {seccomp.SEGMENT >> 10} KiB"
    )


def _overlay() -> str:
    """Tried, and not looked up: what a kernel has is not what it lets a user do."""
    if _works(_TRY_OVERLAY):
        return "projects and bases are read where they lie, and not copied"
    raise _Missing("an ordinary user may mount none", "Use Linux 5.11 or later; see also: modprobe overlay", "broken")


def _idmap() -> str:
    if os.geteuid() != 0:
        return "not needed: a user's instances run as that user"
    if _works(_TRY_IDMAP):
        return "projects of root are shown to instances that run as nobody"
    raise _Missing("this kernel, or the file system of the temporary folder, has none", "Use Linux 5.12 or later.")


def _engine(name: str) -> str:
    try:
        return check_host(name) or "can be used"
    except AEnvError as error:
        raise _Missing(error.message, f"Only needed for AENV_ENGINE={name}.") from None
    except Exception as error:  # a plug-in that cannot be imported must not keep the rest of the report back
        raise _Missing(f"{type(error).__name__}: {error}", f"Only needed for AENV_ENGINE={name}.") from None


def _packages() -> str:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is not None:
        return uv
    if _works("import pip"):
        raise _Missing("there is no uv; pip is used, which takes longer", "Run: pip install uv")
    raise _Missing("there is neither uv nor pip; requirements.txt of environments cannot be had", "Run: pip install uv")


def _builder() -> str:
    found = find_builder(config.load().build_config)
    if isinstance(found, str):
        raise _Missing(found, "Only for images: bundles, which run here, need none.")
    return found.program


def _files() -> str:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FILES:
        raise _Missing(f"{most:,} at the most", f"For a thousand instances: ulimit -Hn {FILES} before aenv serve")
    return f"{most:,} at the most" if most != resource.RLIM_INFINITY else "without a limit"


def _disk() -> str:
    said = []
    for folder in (data_folder(), config.cache_folder()):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not os.access(there, os.W_OK):
            raise _Missing(
                f"{folder} cannot be written", "Name another with AENV_DATA_DIR or XDG_CACHE_HOME.", "broken"
            )
        free = shutil.disk_usage(there).free
        if free < ROOM:
            raise _Missing(
                f"{free / 1e9:.1f} GB free at {folder}", "Make room: environments and their packages live there."
            )
        said.append(f"{free / 1e9:.0f} GB free at {folder}")
    return ", ".join(said)


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _works(code: str) -> bool:
    """In a process of its own, which has all of its mounts for itself and takes them with it."""
    tried = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=False, timeout=30)
    return tried.returncode == 0


_OWN = """
import os, tempfile
from aenv.isolation.kernel import linux
inside = os.geteuid(), os.getegid()
linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
linux.map_user(1000, *inside)
linux.mount("tmpfs", "/mnt", "tmpfs")
"""
_TRY_OVERLAY = (
    _OWN
    + """
for name in ("lower", "upper", "work", "root"):
    os.mkdir("/mnt/" + name)
linux.mount("overlay", "/mnt/root", "overlay", 0, "lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work,userxattr")
"""
)
_TRY_IDMAP = """
import os, tempfile
from aenv.isolation.kernel import linux
with tempfile.TemporaryDirectory() as folder:
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.bind_as(folder, folder, 0, 65534)
    linux.umount(folder)
"""
