"""Writable layers on disk with a size limit: an ext4 image on a loop device, for which root is needed.

Nothing is left of a layer, whichever process is killed: its image has no name, the kernel detaches the loop device with
the last mount, and the mount ends with the namespaces of its zygote and its sandbox.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

from aenv.isolation.kernel import linux

PLACE = "/.disk"
"""Mount point of the layer in the zygote. The sandbox binds it to its own place and covers this one."""
FOLDER = "/var/tmp"
"""Folder whose file system has room for the images: of all temporary folders, the one that is not in memory."""
SMALLEST = 16 << 20
_KEPT_FREE = 20
"""A layer is refused if less than one part in this many of the file system would be left."""
_CONTROL = "/dev/loop-control"
_SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR = 4
_ATTEMPTS = 50
"""Tries to get a free loop device: another process may take it first."""


def unsupported_reason() -> str | None:
    """Return why this process cannot make layers on disk; None if it can."""
    if os.geteuid() != 0:
        return "only root can limit the size of files on disk, with a loop device"
    if not os.path.exists(_CONTROL):
        return f"this machine has no loop devices ({_CONTROL})"
    if _mkfs() is None:
        return "mkfs.ext4 is not installed (package e2fsprogs)"
    if _file_system(FOLDER) in ("tmpfs", "ramfs"):
        return f"{FOLDER} is in memory"
    return None


def mount(target: str, size: int, owner: int) -> None:
    """Mount an empty file system of ``size`` bytes on disk at ``target``; its root folder belongs to ``owner``.

    All of its space is taken at once: a program in it can run out of its own space only.

    Raises:
        OSError: the disk has no room, or this machine cannot do it.
    """
    image = _allocate(max(size, SMALLEST))
    try:
        _format(image, owner)
        device, path = _attach(image)
    finally:
        os.close(image)
    try:
        linux.mount(path, target, "ext4", linux.MS_NOSUID | linux.MS_NODEV, "noinit_itable")
    finally:
        os.close(device)  # without a mount, the kernel detaches it now


def _allocate(size: int) -> int:
    """Return an open file without a name, with all of its space reserved."""
    about = os.statvfs(FOLDER)
    if about.f_bavail * about.f_frsize - size < about.f_blocks * about.f_frsize // _KEPT_FREE:
        raise OSError(errno.ENOSPC, f"{FOLDER} has no room for {size >> 20}Mi of files")
    try:
        file = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # not every file system has unnamed files
        name = os.path.join(FOLDER, f"aenv-disk-{os.getpid()}")
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(name)
    try:
        os.posix_fallocate(file, 0, size)
    except BaseException:
        os.close(file)
        raise
    return file


def _format(image: int, owner: int) -> None:
    options = f"nodiscard,lazy_itable_init=1,root_owner={owner}:{owner}"
    command = [_mkfs() or "mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", options]
    done = subprocess.run(
        [*command, f"/proc/self/fd/{image}"],
        pass_fds=(image,),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise OSError(errno.EIO, f"mkfs.ext4: {done.stderr.strip()[:200]}")


def _attach(image: int) -> tuple[int, str]:
    """Return an open loop device of the image, and its path. The kernel detaches it when nothing uses it any more."""
    numbers = struct.pack("=5Q4I", 0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR)
    config = struct.pack("=II", image, 0) + numbers + bytes(64 + 64 + 32 + 16) + bytes(64)
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            path = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device, path
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def _mkfs() -> str | None:
    return shutil.which("mkfs.ext4", path=_SYSTEM_PATH)


def _file_system(folder: str) -> str:
    """Return the type of the file system that a folder is on."""
    real, best, found = os.path.realpath(folder), "", ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, place, kind, *_ = line.split()
            if len(place) >= len(best) and (real == place or real.startswith(f"{place.rstrip('/')}/")):
                best, found = place, kind
    return found
