"""``aenv doctor``: what this machine supports, what is missing, and how to get it."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from aenv import config
from aenv.errors import AEnvError
from aenv.images.uv_program import uv_program
from aenv.isolation.confined.level import confined_refusal
from aenv.isolation.files import disk_layers
from aenv.isolation.host_support import unsupported_reason
from aenv.isolation.kernel import landlock, linux, seccomp
from aenv.isolation.limits.cgroups import CONTROLLERS, Cgroups, counts_processes_per_namespace, group_name
from aenv.platform.operations.engine_factory import check_host, engine_names
from aenv.platform.operations.settings import DEFAULT_ENGINE
from aenv.project.image_build import find_builder
from aenv.storage.open_url import data_folder
from aenv.subprocesses import run

State = Literal["ok", "missing", "broken"]
MIN_OPEN_FILES = 16384
"""Open files that a server with a thousand instances and their callers needs."""
MIN_FREE_BYTES = 1 << 30
"""Free disk space required, in bytes."""


@dataclass(frozen=True, slots=True)
class HostFinding:
    """Result of one check."""

    what: str
    state: State
    """``missing``: an optional part is not available; ``broken``: nothing works without it."""
    said: str
    hint: str = ""


class _CheckFailed(Exception):
    """A check that failed."""

    def __init__(self, said: str, hint: str = "", state: State = "missing") -> None:
        super().__init__(said)
        self.said, self.hint, self.state = said, hint, state


def examine() -> list[HostFinding]:
    """Run all checks. The first finding is about the native engine: whether sandboxes can be created at all."""
    checks: dict[str, Callable[[], str]] = {
        "native engine": _native,
        "user namespaces": _namespaces,
        "isolation level confined": _confined,
        "system-call filter": _filter,
        "control groups": _groups,
        "overlay file system": _overlay,
        "mounts for another user": _idmap,
        "files on disk": _files_on_disk,
        **{f"engine {name}": partial(_engine, name) for name in engine_names(aliases=False) if name != DEFAULT_ENGINE},
        "packages": _packages,
        "image builder": _builder,
        "open files": _files,
        "disk": _disk,
    }
    found = []
    for what, check in checks.items():
        try:
            found.append(HostFinding(what, "ok", check()))
        except _CheckFailed as error:
            found.append(HostFinding(what, error.state, error.said, error.hint))
        except (AEnvError, OSError) as error:
            found.append(HostFinding(what, "missing", str(error)))
    return found


def _native() -> str:
    reason = unsupported_reason()
    if reason is None:
        return "instances are isolated sandboxes, without any service to install"
    said, _, command = reason.partition("; allow them with: ")
    less = "Or accept less isolation: AENV_ISOLATION=confined; without any: AENV_ENGINE=process"
    hint = f"Run: {command}" if command else less
    raise _CheckFailed(said, hint, "broken")


def _namespaces() -> str:
    limit = _number("/proc/sys/user/max_user_namespaces")
    if limit == 0:
        raise _CheckFailed("this kernel allows none", "Run: sudo sysctl user.max_user_namespaces=15000", "broken")
    who = "as root" if os.geteuid() == 0 else "as an ordinary user"
    apart = "" if counts_processes_per_namespace() else "; this kernel counts processes of all sandboxes together"
    return f"up to {limit:,}, {who}{apart}" if limit is not None else f"{who}{apart}"


def _confined() -> str:
    reason = confined_refusal()
    if reason is not None:
        raise _CheckFailed(reason, "Only needed where namespaces are forbidden, as in most containers.")
    return (
        f"can be chosen where namespaces are forbidden (Landlock {landlock.abi()}); it is used only with "
        "AENV_ISOLATION=confined or auto"
    )


def _filter() -> str:
    if not seccomp.supported():
        raise _CheckFailed(f"not available for {linux.MACHINE} yet", state="broken")
    if not any(line.startswith("Seccomp:") for line in Path("/proc/self/status").read_text().splitlines()):
        raise _CheckFailed("this kernel has no seccomp", "Use one with CONFIG_SECCOMP_FILTER.", "broken")
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
    raise _CheckFailed(f"version {version}: {lacking} cannot be limited here{_unlimited_memory(there)}", hint)


def _unlimited_memory(controllers: list[str]) -> str:
    """Describe what per-process limits leave out where the memory of an instance cannot be counted as a whole."""
    if "memory" in controllers:
        return ""
    return (
        "; memory is limited per process. Not limited: memory that processes share without a file (an anonymous "
        "mapping). Unnamed files in memory (memfd) are refused, /dev/shm counts as disk, and a segment of System V "
        f"shared memory has at most {seccomp.SEGMENT >> 10} KiB"
    )


def _overlay() -> str:
    """Try it instead of looking it up: what a kernel has is not what it lets a user do."""
    if _succeeds(_TRY_OVERLAY):
        return "projects and base images are mounted, not copied"
    raise _CheckFailed(
        "an ordinary user cannot mount one", "Use Linux 5.11 or later; see also: modprobe overlay", "broken"
    )


def _idmap() -> str:
    if os.geteuid() != 0:
        return "not needed: a user's instances run as that user"
    if _succeeds(_TRY_IDMAP):
        return "projects of root are mapped for instances, which run as nobody"
    raise _CheckFailed("not supported by this kernel or the temporary folder's file system", "Use Linux 5.12 or later.")


def _engine(name: str) -> str:
    try:
        return check_host(name) or "can be used"
    except AEnvError as error:
        needed = f"Only needed for AENV_ENGINE={name}."
        raise _CheckFailed(error.message, " ".join(filter(None, (needed, error.details.get("hint"))))) from None
    except Exception as error:  # a plug-in that cannot be imported must not keep the rest of the report back
        raise _CheckFailed(f"{type(error).__name__}: {error}", f"Only needed for AENV_ENGINE={name}.") from None


def _packages() -> str:
    uv = uv_program()
    if uv is not None:
        return str(uv)
    if _succeeds("import pip"):
        raise _CheckFailed("uv is not installed; pip is used, which takes longer", "Run: pip install uv")
    raise _CheckFailed("neither uv nor pip is installed, which install packages of environments", "Run: pip install uv")


def _builder() -> str:
    found = find_builder(config.load().build_config)
    if isinstance(found, str):
        raise _CheckFailed(found, "Only needed for images: bundles, which run here, need none.")
    return found.program


def _files() -> str:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < MIN_OPEN_FILES:
        raise _CheckFailed(
            f"at most {most:,}", f"For a thousand instances: ulimit -Hn {MIN_OPEN_FILES} before aenv serve"
        )
    return f"at most {most:,}" if most != resource.RLIM_INFINITY else "without a limit"


def _files_on_disk() -> str:
    reason = disk_layers.unsupported_reason()
    if reason is not None:
        raise _CheckFailed(reason, "Only needed for ephemeralStorageMedium: disk. Files of instances are in memory.")
    return f"ephemeralStorageMedium: disk works; the files are in {disk_layers.FOLDER}"


def _disk() -> str:
    said = []
    for folder in (data_folder(), config.cache_folder()):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not os.access(there, os.W_OK):
            raise _CheckFailed(
                f"{folder} is not writable", "Set another one with AENV_DATA_DIR or XDG_CACHE_HOME.", "broken"
            )
        free = shutil.disk_usage(there).free
        if free < MIN_FREE_BYTES:
            raise _CheckFailed(
                f"{free / 1e9:.1f} GB free at {folder}", "Free some space: environments and packages are stored there."
            )
        said.append(f"{free / 1e9:.0f} GB free at {folder}")
    return ", ".join(said)


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _succeeds(code: str) -> bool:
    """Run code in a process of its own, whose mounts end with it. Returns whether it succeeded."""
    return run([sys.executable, "-P", "-c", code], timeout=30).ok


_IN_NAMESPACES = """
import os, tempfile
from aenv.isolation.kernel import linux
inside = os.geteuid(), os.getegid()
linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
linux.map_user(1000, *inside)
linux.mount("tmpfs", "/mnt", "tmpfs")
"""
_TRY_OVERLAY = (
    _IN_NAMESPACES
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
