"""The file system of a sandbox: the host's own programs, read-only, and nothing else of the host.

Built once per zygote. A sandbox gets a copy of the mounts with its mount namespace and puts its own writable places
on top (`private_places`), so creating one mounts a handful of things and copies nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from aenv.isolation.files import private_folder, volumes
from aenv.isolation.files.volumes import Volume
from aenv.isolation.kernel import linux
from aenv.isolation.kernel.syscall_plan import SyscallPlan

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt")
ETC = (
    "/etc/alternatives", "/etc/ca-certificates", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/localtime", "/etc/mime.types", "/etc/pki", "/etc/protocols", "/etc/services", "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf", "/etc/timezone",
)  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
HOME = "/home/env"
PROJECT = "/app"
"""Where a sandbox has the project, to change for itself."""
SNAPSHOT = "/.project"
"""Where it has the project as it was shipped, read-only: the lower layer of PROJECT, and what modules come from."""
MASK = "/.masked"
"""What covers the part of SNAPSHOT that is withheld; where nothing is, there is none."""
USER_ID = 1000
"""Who a sandbox's processes are, inside."""
_FRESH_FOLDERS = ("/tmp", "/var/tmp", "/run", HOME, "/dev/shm")
WRITABLE = (*_FRESH_FOLDERS, "/mnt")
"""Places that each sandbox has for itself."""
SPARE_PROC = "/.proc"
"""Holds a procfs of a process namespace without processes. The kernel lets a user namespace mount a procfs only if its
mount namespace has one that nothing covers in part; that of a sandbox has covers, this one has none."""
FILES = {
    "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nenv:x:{USER_ID}:{USER_ID}:env:{HOME}:/bin/sh\n",
    "/etc/group": f"root:x:0:\nenv:x:{USER_ID}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/hostname": "sandbox\n",
    "/etc/resolv.conf": "",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


PROC_FLAGS = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
MASKED = (
    "acpi", "asound", "bootconfig", "cmdline", "config.gz", "interrupts", "iomem", "ioports", "kallsyms", "kcore",
    "key-users", "keys", "kmsg", "latency_stats", "locks", "modules", "sched_debug", "schedstat", "scsi", "softirqs",
    "partitions", "sysrq-trigger", "timer_list", "timer_stats", "zoneinfo",
)  # fmt: skip
"""Entries of /proc that tell of the host and not of the sandbox: all that Docker masks, and more."""


def masks(proc: str = "/proc") -> list[tuple[str, str, str | None, int]]:
    """Return what to mount over `MASKED`, as far as this kernel has it and not only the host's root may open it."""
    found: list[tuple[str, str, str | None, int]] = []
    for name in MASKED:
        try:
            mode = os.stat(f"{proc}/{name}").st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode):
            found.append(("hidden", f"/proc/{name}", "tmpfs", PROC_FLAGS | linux.MS_RDONLY))
        elif mode & 0o077:
            found.append(("/dev/null", f"/proc/{name}", None, linux.MS_BIND))
    return found


PROC: list[tuple[str, str, str | None, int]] = [("proc", "/proc", "proc", PROC_FLAGS), *masks()]
"""What to mount once in the process namespace of a sandbox: source, target, kind, flags. A mask takes 5 us of CPU."""


def interpreter_paths() -> list[str]:
    """Where this Python and all that it can import live, as far as the system's folders do not hold it."""
    wanted = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    wanted |= {path for path in sys.path if path and os.path.exists(path)}
    wanted |= {os.path.realpath(path) for path in wanted}
    outside = sorted(path for path in wanted if path != "/" and not is_below(path, SYSTEM))
    return [path for path in outside if not is_below(path, (other for other in outside if other != path))]


def is_below(path: str, tops: Iterable[str]) -> bool:
    """Whether a path is one of these, or in one of them."""
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def build(
    root: str,
    shown: Iterable[str],
    project: str | None,
    user: int | None = None,
    *,
    host_network: bool = False,
    files: list[str] | None = None,
    volume: Volume | None = None,
) -> list[str]:
    """Make the tree at ``root`` (an empty folder) and enter it; the host's files are out of reach from then on.

    ``shown`` are further paths of the host to show, read-only, where they are; ``project`` is shown at SNAPSHOT, where
    root's files belong to ``user``, if given; of it only ``files``, if given. What comes back are the folders that have
    shown paths in them and lie in places which each sandbox has for itself.
    """
    shown = list(shown)
    if volume is not None:
        volumes.check_conflicts(volume, shown)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("aenv", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=16m,mode=755")
    for path in (*SYSTEM, *ETC):
        bind_host_path(root, path)
    for path in shown:
        bind_host_path(root, path)
    for path in (PROJECT, SNAPSHOT, f"{SPARE_PROC}/proc"):
        os.makedirs(root + path)
    show_project(project, files, root + SNAPSHOT, user, mask=root + MASK)
    for path, text in (FILES | host_name_files() if host_network else FILES).items():
        target = Path(root + path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for path in (*WRITABLE, "/root", "/proc", "/sys"):
        os.makedirs(root + path, exist_ok=True)
    if volume is not None and not is_below(volume.target, (*WRITABLE, PROJECT)):
        os.makedirs(root + volume.target, exist_ok=True)
    seal(root, volume)
    return sorted({_first_below(path, WRITABLE) for path in shown if is_below(path, WRITABLE)})


def _first_below(path: str, tops: Iterable[str]) -> str:
    """The folder right below one of ``tops`` that a path is in.

    All of it is shown, and not only the path: in a folder of its own a sandbox could rename what is above the path, and
    put other modules where the interpreter looks for them.
    """
    top = max((top for top in tops if is_below(path, (top,))), key=len)
    return "/".join(path.split("/")[: top.count("/") + 2])


def seal(root: str, volume: Volume | None = None) -> None:
    """Add devices, have nothing be changed any more but a volume, and enter it."""
    make_device_places(root)
    if volume is not None:
        os.makedirs(root + volumes.PARENT_MOUNT)
    linux.make_read_only(root)
    if volume is not None:
        volumes.mount_in_parent(volume, root)
    for name in DEVICES:  # after the others, which refuse devices
        linux.bind(f"/dev/{name}", f"{root}/dev/{name}")
        linux.make_read_only(f"{root}/dev/{name}", nodev=False)
    linux.bind("/proc", f"{root}/proc")  # the kernel lets a user namespace mount a new one only where there is one
    linux.pivot_root(root)


def host_name_files() -> dict[str, str]:
    """Where names are looked up, for sandboxes that are in the host's network."""
    found: dict[str, str] = {}
    for path in ("/etc/hosts", "/etc/resolv.conf"):
        with contextlib.suppress(OSError):
            found[path] = Path(path).read_text()
    return found


def _copy_project_files(project: str, files: list[str], target: str, user: int | None) -> None:
    """For a project that is not its whole folder. Copied: an overlay does not see what is mounted in a layer of it."""
    linux.mount("aenv", target, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,nr_inodes=100k")
    for name in files:
        source = os.path.join(project, name)
        if os.path.isdir(source):
            shutil.copytree(source, os.path.join(target, name), copy_function=shutil.copyfile, symlinks=True)
        else:
            shutil.copyfile(source, os.path.join(target, name))
    for folder, _, names in os.walk(target):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            if user is not None:
                os.lchown(path, user, user)
            if not os.path.islink(path):
                os.chmod(path, 0o755 if path == folder else 0o644)


def show_project(project: str | None, files: list[str] | None, target: str, user: int | None, *, mask: str) -> None:
    """See `build`. ``mask``: where to make what covers the part of it that is withheld."""
    if project is not None and files is not None:
        _copy_project_files(project, files, target, user)
    elif project is not None:
        bind_owned_by(project, target, user)
        if private_folder.has_folder(project):
            private_folder.hide(target, mask)


def bind_owned_by(source: str, target: str, user: int | None) -> None:
    """Show a tree in which the files of its owner belong to ``user``, if given."""
    if user is not None:
        with contextlib.suppress(OSError):  # not every file system can; then what is not public stays unread
            linux.bind_as(source, target, os.stat(source).st_uid, user)
            return
    linux.bind(source, target)


def bind_host_path(root: str, path: str) -> None:
    """Show a path of the host, where it is; a link is made anew."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    target = root + path
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(path), target)
        return
    if stat.S_ISDIR(mode):
        os.makedirs(target)
    else:
        Path(target).touch()
    linux.bind(path, target)


def make_device_places(root: str) -> None:
    """Files to show the host's devices at, and the links that belong to them."""
    os.makedirs(f"{root}/dev/pts")
    for name in DEVICES:
        Path(f"{root}/dev/{name}").touch()
    for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
                         ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")):  # fmt: skip
        os.symlink(target, f"{root}/dev/{name}")


def mount_writable(plan: SyscallPlan, *, size: int, shown: Iterable[str], volume: Volume | None = None) -> None:
    """The writable places of one sandbox, in its own mount namespace.

    All of them live in one tmpfs of ``size`` bytes, and so does what the sandbox changes in the project. ``shown`` is
    what `build` returned: it would disappear below the new places.
    """
    flags = linux.MS_NOSUID | linux.MS_NODEV
    whole = linux.CLONE_TREE | linux.AT_RECURSIVE
    held = [(path, plan.do("open_tree", linux.HERE, path, whole, what=f"open({path})")) for path in shown]
    plan.mount("layer", "/mnt", "tmpfs", flags, f"size={size},mode=755,nr_inodes=1m")
    mount_fresh(plan, "/mnt")
    for path, tree in held:
        plan.folder(path)
        plan.do("move_mount", tree, "", linux.HERE, path, linux.MOVE_MOUNT_F_EMPTY_PATH, what=f"bind_host_path({path})")
        plan.do("close", tree)
    plan.folder("/mnt/upper")
    plan.folder("/mnt/work")
    layers = f"lowerdir={SNAPSHOT},upperdir=/mnt/upper,workdir=/mnt/work,userxattr"
    plan.mount("overlay", PROJECT, "overlay", flags, layers)
    mount_devpts(plan)
    if volume is not None:
        volumes.mount_in_sandbox(plan, volume)
        cover(plan, volumes.PARENT_MOUNT)
    # Not seen, not reached: through it a sandbox could write into its own lower layers.
    cover(plan, "/mnt")


def cover(plan: SyscallPlan, path: str) -> None:
    """Hide what only processes with rights need."""
    plan.mount("hidden", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY, "size=0,mode=000")


def mount_fresh(plan: SyscallPlan, layer: str, root: str = "") -> None:
    """Empty folders of a sandbox's own, which live in ``layer``."""
    for place in _FRESH_FOLDERS:
        own = layer + place
        plan.folder(own, mode=0o1777 if place != HOME else 0o700)
        plan.mount(own, root + place, flags=linux.MS_BIND)


def mount_devpts(plan: SyscallPlan, root: str = "") -> None:
    """Of the sandbox's own."""
    flags = linux.MS_NOSUID | linux.MS_NOEXEC
    plan.mount("devpts", f"{root}/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620")


def mount_proc(plan: SyscallPlan, root: str = "", *, hide_others: bool = False) -> None:
    """Show the processes of this process namespace. ``hide_others``: only those that the reader could trace."""
    for source, target, kind, flags in PROC:
        plan.mount(source, root + target, kind or "", flags, "hidepid=2" if hide_others and kind == "proc" else "")


def mount_spare_proc() -> None:
    """Mount a procfs at SPARE_PROC. Run by the first and last process of a process namespace."""
    linux.mount("proc", f"{SPARE_PROC}/proc", "proc", PROC_FLAGS)
