"""Sandboxes with a custom root file system (a *base*) in place of the host's, of whatever distribution and release.

The interpreter is still the host's, with all that it can import, since the zygote runs on it. It is bind-mounted below
HOST and started there by the host's own loader with the host's own libraries, so that it loads nothing from the base.
Programs that tools start see the base's files only, at their usual paths.

The zygote's root holds the parts: base, cover (replacements of files of the base) and an empty mnt, all below PRISTINE;
HOST, SNAPSHOT, /dev and /proc. Each sandbox mounts an overlay of base and cover as its root, so it may change all of
the base for itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import struct
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from aenv.isolation.files import rootfs, volumes
from aenv.isolation.files.rooted_paths import resolve_in_root
from aenv.isolation.files.volumes import Volume
from aenv.isolation.kernel import linux
from aenv.isolation.kernel.syscall_plan import Outcome, SyscallPlan

HOST = "/opt/aenv/host"
SNAPSHOT = "/opt/aenv/project"
"""Read-only project; see `rootfs.SNAPSHOT`."""
_VENV = "/opt/aenv/python"
PYTHON = f"{_VENV}/bin/python"
"""Value of ``sys.executable`` in a sandbox: a script, as the interpreter does not start without its loader."""
_LIBRARIES = (
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/usr/local/lib",
)
_NAME_SERVICES = (
    b"aliases", b"ethers", b"group", b"gshadow", b"hosts", b"initgroups", b"netgroup", b"networks", b"passwd",
    b"protocols", b"publickey", b"rpc", b"services", b"shadow",
)  # fmt: skip
_PREFIXES = ("/usr", "/usr/local")
"""Prefixes of a Python that the system brings; its libraries are in `_LIBRARIES`."""
PRISTINE = "/.pristine"
"""Folder with the parts of a sandbox's root. Syscall plans use paths relative to it: a process that sets up a sandbox
has it as its working directory. A fork of a preloaded parent can reach it in no other way, as it is covered to hide it
from the author's code."""
_PRISTINE_PARTS = ("base", "cover", "mnt")
_PLACES = (
    *rootfs.WRITABLE, rootfs.PROJECT, "/proc", "/sys", "/dev", "/mnt", "/opt/aenv", f"{rootfs.SPARE_PROC}/proc",
    *(f"{PRISTINE}/{piece}" for piece in _PRISTINE_PARTS),
)  # fmt: skip


def build(
    root: str,
    base: str,
    shown: Iterable[str],
    project: str | None,
    user: int | None,
    *,
    host_network: bool,
    files: list[str] | None,
    volume: Volume | None = None,
    disk: int | None = None,
) -> None:
    """Build the zygote's tree at ``root`` (an empty folder) and enter it. The arguments are those of `rootfs.build`."""
    pieces = _host_pieces([*shown, *_search_path()])
    names = rootfs.host_name_files() if host_network else {}
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("aenv", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=16m,mode=755")
    pristine = root + PRISTINE
    for folder in (*(f"{PRISTINE}/{piece}" for piece in _PRISTINE_PARTS), f"{rootfs.SPARE_PROC}/proc", "/proc", "/tmp",
                   "/dev/shm", SNAPSHOT, HOST):  # fmt: skip
        os.makedirs(root + folder, exist_ok=True)
    rootfs.bind_owned_by(base, f"{pristine}/base", user)
    _build_cover(f"{pristine}/cover", base, names, user)
    for path in pieces:
        rootfs.bind_host_path(root + HOST, path)
    _build_venv(root)
    rootfs.show_project(project, files, root + SNAPSHOT, user, mask=root + rootfs.MASK)
    rootfs.seal(root, volume, disk, user)


def _host_pieces(paths: Iterable[str]) -> list[str]:
    """Return the host's folders and files that its interpreter needs."""
    wanted = {path for path in (*_LIBRARIES, *_library_path()) if os.path.lexists(path)}
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix} - set(_PREFIXES)
    for path in (*prefixes, *paths, os.path.realpath(sys.executable)):
        wanted |= {path, os.path.realpath(path)} if os.path.exists(path) else set()
    return sorted(path for path in wanted if not rootfs.is_below(path, (other for other in wanted if other != path)))


def _search_path() -> list[str]:
    return [path for path in sys.path if path.strip("/.") and os.path.exists(path)]


def _library_path() -> list[str]:
    """Return the folders that the host's loader searches for libraries, most specific first."""
    triplet = str(sysconfig.get_config_var("MULTIARCH") or "")
    own = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path.startswith("/")]
    listed: list[str] = []
    for file in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        with contextlib.suppress(OSError):
            listed += [line.strip() for line in file.read_text().splitlines() if line.startswith("/")]
    common = [
        f"{top}{end}"
        for end in (f"/{triplet}", "")
        for top in ("/usr/local/lib", "/lib", "/usr/lib")
        if triplet or not end
    ]
    found = [*own, f"{sys.base_prefix}/lib", *listed, *common, "/lib64", "/usr/lib64"]
    return [path for path in dict.fromkeys(os.path.realpath(path) for path in found) if os.path.isdir(path)]


def _build_cover(cover: str, base: str, names: dict[str, str], user: int | None) -> None:
    """Fill the cover: files of /etc that describe the sandbox, and folders to mount on."""
    for path in _PLACES:
        os.makedirs(cover + path, exist_ok=True)
    for path, text in (rootfs.FILES | names).items():
        if path in ("/etc/passwd", "/etc/group"):
            text = f"{text.splitlines()[1]}\n{_read_inside(base, path) or text.splitlines()[0]}\n"
        target = Path(cover + path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for folder, _, files in os.walk(cover):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            if user is not None:
                os.lchown(path, user, user)


def _read_inside(base: str, path: str) -> str | None:
    """Read a small file of the base. Symbolic links are resolved inside the base, never to a file of the host."""
    folder, name = os.path.split(path)
    try:
        descriptor = os.open(
            os.path.join(resolve_in_root(base, folder), name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        with open(descriptor, errors="replace") as file:
            return file.read(1 << 16).strip()
    except (OSError, ValueError):
        return None


def _build_venv(root: str) -> None:
    """Create a virtual environment in which the host's interpreter has the host's module search path."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = Path(root + _VENV, "lib", version, "site-packages")
    packages.mkdir(parents=True)
    binary = os.path.realpath(sys.executable)
    home = os.path.dirname(os.path.realpath(getattr(sys, "_base_executable", binary)))
    Path(root + _VENV, "pyvenv.cfg").write_text(f"home = {HOST}{home}\ninclude-system-site-packages = false\n")
    (packages / "host.pth").write_text("".join(f"{HOST}{path}\n" for path in _search_path()))
    script = Path(root + PYTHON)
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nexec {shlex.join(_interpreter_command())} "$@"\n')
    script.chmod(0o755)


def _interpreter_command() -> list[str]:
    """Return the command that starts the host's interpreter below HOST."""
    binary = os.path.realpath(sys.executable)
    loader = os.path.realpath(_elf_interpreter(binary))
    glibc = ["--inhibit-cache"] if os.path.basename(loader).startswith("ld-") and "musl" not in loader else []
    libraries = ":".join(HOST + path for path in _library_path())
    return [HOST + loader, *glibc, "--library-path", libraries, "--argv0", PYTHON, HOST + binary]


def _elf_interpreter(binary: str) -> str:
    """Return the program interpreter (the loader) that an ELF binary names."""
    with open(binary, "rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            raise OSError(8, f"{binary} is not a 64-bit ELF program")
        offset, size, count = struct.unpack_from("=Q", head, 32)[0], *struct.unpack_from("=HH", head, 54)
        for number in range(count):
            file.seek(offset + number * size)
            kind, _, at, _, _, length = struct.unpack("=IIQQQQ", file.read(40))
            if kind == 3:
                file.seek(at)
                return file.read(length).rstrip(b"\0").decode()
    raise OSError(8, f"{binary} is statically linked; a base needs a dynamically linked Python")


def exec_interpreter(*words: str, variables: dict[str, str]) -> NoReturn:
    """Replace this process with the interpreter below HOST, keeping nothing of the host in memory.

    Its environment has only ``variables``, PATH and LANG.
    """
    script = Path(PYTHON).read_text().splitlines()[1]  # the base may have no shell to run the script
    command = shlex.split(script)[1:-1]
    os.execve(command[0], [*command, *words], {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **variables})


def configure_name_services() -> None:
    """Fix the C library's name service configuration for this process and its forks.

    By default it would read the base's /etc/nsswitch.conf and load the libraries named there from the base. A sandbox
    may change both, and so could load its own code into the runtime.
    """
    configure = getattr(ctypes.CDLL(None), "__nss_configure_lookup", None)
    if configure is not None:  # glibc; other C libraries load nothing
        for database in _NAME_SERVICES:
            configure(database, b"files dns" if database == b"hosts" else b"files")


def mount_root(
    plan: SyscallPlan, *, size: int, volume: Volume | None = None, carry: bool = False, on_disk: bool = False
) -> None:
    """Plan the root of one sandbox in its own mount namespace; its changes live in one tmpfs of ``size`` bytes, or in
    the zygote's layer on disk.

    The plan runs with `PRISTINE` as the working directory. ``carry``: mount PRISTINE in the new root, too, for forks of
    this sandbox.
    """
    flags = linux.MS_NOSUID | linux.MS_NODEV
    rootfs.mount_layer(plan, "mnt", size, on_disk=on_disk)
    for folder in ("root", "upper", "work", "app", "app-work"):
        plan.do("mkdirat", linux.HERE, f"mnt/{folder}", 0o777)
    root = "mnt/root"
    plan.mount("overlay", root, "overlay", flags, "lowerdir=cover:base,upperdir=mnt/upper,workdir=mnt/work,userxattr")
    for path in ("/opt/aenv", "/dev"):
        plan.bind(path, root + path)
    rootfs.mount_proc(plan, root, hide_others=carry)
    rootfs.mount_fresh(plan, "mnt", root)
    layers = f"lowerdir={SNAPSHOT},upperdir=mnt/app,workdir=mnt/app-work,userxattr"
    plan.mount("overlay", root + rootfs.PROJECT, "overlay", flags, layers)
    rootfs.mount_devpts(plan, root)
    if volume is not None:
        volumes.mount_in_sandbox(plan, volume, root)
    if carry:
        plan.bind(f"{rootfs.SPARE_PROC}/proc", f"{root}{rootfs.SPARE_PROC}/proc")
        for piece in ("base", "cover"):
            plan.bind(piece, f"{root}{PRISTINE}/{piece}")
    plan.do("chdir", root)
    plan.do("pivot_root", ".", ".")
    plan.do("umount2", ".", linux.MNT_DETACH)
    plan.do("chdir", "/")


def open_pristine(plan: SyscallPlan) -> Outcome:
    """Plan to open PRISTINE, then cover it."""
    opened = plan.do("openat", linux.HERE, PRISTINE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    rootfs.cover(plan, PRISTINE)
    return opened
