"""Root file system of a sandbox: the host's own programs, read-only, and nothing else of the host.

It is built once per zygote. A sandbox gets a copy of the mounts with its mount namespace and mounts its own writable
folders on top (`mount_writable`), so creating one takes a handful of mounts and copies nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from aenv.isolation.files import disk_layers, private_folder, volumes
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
"""Path of the project in a sandbox, which may change its own copy."""
SNAPSHOT = "/.project"
"""Path of the project as shipped, read-only: the lower layer of PROJECT, and the folder that modules come from."""
MASK = "/.masked"
"""Layer that hides the private folder of SNAPSHOT; absent if there is none."""
USER_ID = 1000
"""User id of a sandbox's processes, inside."""
_FRESH_FOLDERS = ("/tmp", "/var/tmp", "/run", HOME, "/dev/shm")
WRITABLE = (*_FRESH_FOLDERS, "/mnt")
"""Folders that each sandbox has for itself."""
SPARE_PROC = "/.proc"
"""Mount point of a procfs of an empty pid namespace. The kernel lets a user namespace mount a procfs only if its mount
namespace already has one without mounts over parts of it. A sandbox's own /proc is masked; this one is not."""
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
"""Entries of /proc that reveal the host: all that Docker masks, and more."""


def masks(proc: str = "/proc") -> list[tuple[str, str, str | None, int]]:
    """Return the mounts that hide `MASKED`, for entries that exist and that not only the host's root may open."""
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
"""Mounts of a sandbox's /proc, in its pid namespace: source, target, type, flags. A mask takes 5 us of CPU."""


def interpreter_paths() -> list[str]:
    """Return the paths of this Python and of all that it can import, except those in the folders of `SYSTEM`."""
    wanted = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    wanted |= {path for path in sys.path if path and os.path.exists(path)}
    wanted |= {os.path.realpath(path) for path in wanted}
    outside = sorted(path for path in wanted if path != "/" and not is_below(path, SYSTEM))
    return [path for path in outside if not is_below(path, (other for other in outside if other != path))]


def is_below(path: str, tops: Iterable[str]) -> bool:
    """Return True if a path is one of ``tops`` or below one of them."""
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
    disk: int | None = None,
) -> list[str]:
    """Build the tree at ``root`` (an empty folder) and enter it; the host's files are out of reach from then on.

    ``shown``: further host paths to mount read-only at the same place. ``project``: mounted at SNAPSHOT, where root's
    files belong to ``user``, if given. ``files``: the only files of the project to include, if given. ``disk``: size of
    a layer on disk for the files that a sandbox writes, in place of one in memory.

    Returns:
        Folders with shown paths that lie in a folder of `WRITABLE`, for `mount_writable`.
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
    seal(root, volume, disk, user)
    return sorted({_first_below(path, WRITABLE) for path in shown if is_below(path, WRITABLE)})


def _first_below(path: str, tops: Iterable[str]) -> str:
    """Return the direct child of one of ``tops`` that contains a path.

    All of that child is shown, not only the path: in a folder of its own a sandbox could rename parents of the path and
    put other modules where the interpreter looks for them.
    """
    top = max((top for top in tops if is_below(path, (top,))), key=len)
    return "/".join(path.split("/")[: top.count("/") + 2])


def seal(root: str, volume: Volume | None = None, disk: int | None = None, user: int | None = None) -> None:
    """Add devices, make the tree read-only except for a volume and a layer on disk, and make it the root."""
    make_device_places(root)
    if volume is not None:
        os.makedirs(root + volumes.PARENT_MOUNT)
    if disk is not None:
        os.makedirs(root + disk_layers.PLACE)
    linux.make_read_only(root)
    if disk is not None:
        disk_layers.mount(root + disk_layers.PLACE, disk, os.geteuid() if user is None else user)
    if volume is not None:
        volumes.mount_in_parent(volume, root)
    for name in DEVICES:  # after the read-only remount, which sets nodev
        linux.bind(f"/dev/{name}", f"{root}/dev/{name}")
        linux.make_read_only(f"{root}/dev/{name}", nodev=False)
    linux.bind("/proc", f"{root}/proc")  # a user namespace may mount a procfs only where one is visible already
    linux.pivot_root(root)


def host_name_files() -> dict[str, str]:
    """Return the host's /etc/hosts and /etc/resolv.conf, for sandboxes in the host's network."""
    found: dict[str, str] = {}
    for path in ("/etc/hosts", "/etc/resolv.conf"):
        with contextlib.suppress(OSError):
            found[path] = Path(path).read_text()
    return found


def _copy_project_files(project: str, files: list[str], target: str, user: int | None) -> None:
    """Copy some files of a project. Bind mounts would not do: an overlay ignores mounts inside its layers."""
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
    """Mount a project (see `build`) below a layer that hides its private folder, sockets and pipes.

    ``mask``: path for the hiding layer. Without a private folder there is none where the kernel cannot stack the
    overlays, as on a project that itself lies on an overlay.
    """
    if project is not None and files is not None:
        _copy_project_files(project, files, target, user)
    elif project is not None:
        bind_owned_by(project, target, user)
        if private_folder.has_folder(project) or _can_stack_overlays(target, f"{mask}-probe"):
            private_folder.hide(target, mask)


def _can_stack_overlays(lower: str, scratch: str) -> bool:
    """Return True if an overlay on an overlay on ``lower`` can be mounted: the kernel stacks two at most."""
    mask, hidden, upper, work, top = (f"{scratch}/{name}" for name in ("mask", "hidden", "upper", "work", "top"))
    for path in (mask, hidden, upper, work, top):
        os.makedirs(path)
    mounted = []
    try:
        linux.mount("overlay", hidden, "overlay", linux.MS_RDONLY, f"lowerdir={mask}:{lower},userxattr")
        mounted.append(hidden)
        linux.mount("overlay", top, "overlay", 0, f"lowerdir={hidden},upperdir={upper},workdir={work},userxattr")
        mounted.append(top)
    except OSError:
        return False
    finally:
        for path in reversed(mounted):
            linux.umount(path)
        shutil.rmtree(scratch)
    return True


def bind_owned_by(source: str, target: str, user: int | None) -> None:
    """Bind-mount a tree; its owner's files appear to belong to ``user``, if given."""
    if user is not None:
        with contextlib.suppress(OSError):  # no idmapped mounts on this file system: only public files are readable
            linux.bind_as(source, target, os.stat(source).st_uid, user)
            return
    linux.bind(source, target)


def bind_host_path(root: str, path: str) -> None:
    """Bind-mount a host path at the same place below ``root``; a symbolic link is copied."""
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
    """Create mount points for the host's devices, and the usual links of /dev."""
    os.makedirs(f"{root}/dev/pts")
    for name in DEVICES:
        Path(f"{root}/dev/{name}").touch()
    for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
                         ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")):  # fmt: skip
        os.symlink(target, f"{root}/dev/{name}")


def mount_writable(
    plan: SyscallPlan,
    *,
    size: int,
    shown: Iterable[str],
    volume: Volume | None = None,
    on_disk: bool = False,
    layer_fd: int = -1,
) -> None:
    """Plan the writable folders of one sandbox in its own mount namespace.

    They live in one tmpfs of ``size`` bytes, or in the layer on disk that `build` made, and so do the sandbox's changes
    to the project. ``shown`` is the result of `build`: these folders would be hidden below the new mounts, so they are
    mounted again on top. ``layer_fd``: number for a descriptor of the file system that all of them are in.
    """
    flags = linux.MS_NOSUID | linux.MS_NODEV
    tree_flags = linux.CLONE_TREE | linux.AT_RECURSIVE
    opened = [(path, plan.do("open_tree", linux.HERE, path, tree_flags, what=f"open({path})")) for path in shown]
    mount_layer(plan, "/mnt", size, on_disk=on_disk)
    mount_fresh(plan, "/mnt")
    for path, tree in opened:
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
    if on_disk:
        cover(plan, disk_layers.PLACE)
    if layer_fd >= 0:
        layer = plan.do("openat", linux.HERE, "/mnt", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, what="open(/mnt)")
        plan.do("dup3", layer, layer_fd, os.O_CLOEXEC)
        plan.do("close", layer)
    # Hidden: through it a sandbox could write to the layers of its own overlays.
    cover(plan, "/mnt")


def mount_layer(plan: SyscallPlan, target: str, size: int, *, on_disk: bool) -> None:
    """Plan the file system that everything is in that the sandbox writes."""
    if on_disk:
        plan.bind(disk_layers.PLACE, target)
    else:
        flags = linux.MS_NOSUID | linux.MS_NODEV
        plan.mount("layer", target, "tmpfs", flags, f"size={size},mode=755,nr_inodes=1m")


def cover(plan: SyscallPlan, path: str) -> None:
    """Plan an empty read-only mount that hides a folder from processes without capabilities."""
    plan.mount("hidden", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY, "size=0,mode=000")


def mount_fresh(plan: SyscallPlan, layer: str, root: str = "") -> None:
    """Plan empty folders of the sandbox's own, stored in ``layer``."""
    for folder in _FRESH_FOLDERS:
        source = layer + folder
        plan.folder(source, mode=0o1777 if folder != HOME else 0o700)
        plan.mount(source, root + folder, flags=linux.MS_BIND)


def mount_devpts(plan: SyscallPlan, root: str = "") -> None:
    """Plan a devpts instance of the sandbox's own."""
    flags = linux.MS_NOSUID | linux.MS_NOEXEC
    plan.mount("devpts", f"{root}/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620")


def mount_proc(plan: SyscallPlan, root: str = "", *, hide_others: bool = False) -> None:
    """Plan a /proc of this pid namespace. ``hide_others``: show only processes that the reader may trace."""
    for source, target, kind, flags in PROC:
        plan.mount(source, root + target, kind or "", flags, "hidepid=2" if hide_others and kind == "proc" else "")


def mount_spare_proc() -> None:
    """Mount a procfs at SPARE_PROC. Called by the only process that ever runs in a new pid namespace."""
    linux.mount("proc", f"{SPARE_PROC}/proc", "proc", PROC_FLAGS)
