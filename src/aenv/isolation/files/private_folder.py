"""A project's ``private/`` folder: in the runtime's memory, and in no file system that programs of tools can see.

The zygote reads it on the host, before it leaves the host's mount namespace, and does not interpret it. Its forks
inherit the contents in memory. In the project's own folder an overlay hides it.
"""

from __future__ import annotations

import errno
import os
import stat

from aenv.isolation.kernel import linux

FOLDER = "private"
MOST_BYTES = 64 << 20
MOST_FILES = 10_000
_VARIABLE = "AENV_WITHHELD"
"""Variable with the descriptor of a memory file that holds the contents, for the interpreter that a zygote execs."""


class TooLargeError(OSError):
    """A ``private/`` folder over the limits: a mistake in the project, not a failure of the host."""

    def __init__(self) -> None:
        limits = f"{MOST_BYTES >> 20} MiB or {MOST_FILES} files"
        super().__init__(f"{FOLDER}/ of the project has more than {limits}, which are kept in memory; put less there")


files: dict[str, bytes] = {}
"""Contents by path relative to the folder, with ``/`` as the separator."""


def load(project: str | None) -> None:
    """Read a project's private folder into `files`, if it has one.

    Symbolic links are skipped: they could lead to any file that the platform's user may read.

    Raises:
        TooLargeError: the folder has more than `MOST_BYTES` or `MOST_FILES`.
    """
    files.clear()
    if project is not None and has_folder(project):
        files.update(read(os.path.join(project, FOLDER)))


def has_folder(project: str) -> bool:
    """Return True if a project has a private folder; a symbolic link does not count."""
    try:
        return stat.S_ISDIR(os.lstat(os.path.join(project, FOLDER)).st_mode)
    except OSError:
        return False


def read(folder: str) -> dict[str, bytes]:
    """Read all regular files below a folder, by relative path."""
    found: dict[str, bytes] = {}
    remaining = MOST_BYTES
    for parent, _, names, parent_fd in os.fwalk(folder):
        for name in sorted(names):
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent_fd)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    continue
                raise
            with open(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    continue
                content = file.read(remaining + 1)
            remaining -= len(content)
            found[os.path.relpath(os.path.join(parent, name), folder)] = content
            if remaining < 0 or len(found) > MOST_FILES:
                raise TooLargeError
    return found


def hide(target: str, mask: str) -> None:
    """Hide what no sandbox may reach of a project that is mounted at ``target``. ``mask``: path for the hiding layer.

    An overlay hides the private folder, not a mount over it: the kernel lets no sandbox use a lower layer with mounts
    in it. Through an overlay, unix sockets and named pipes of the host in the project's folder lead nowhere.
    """
    os.makedirs(mask)
    if os.path.lexists(os.path.join(target, FOLDER)):
        os.mknod(os.path.join(mask, FOLDER), stat.S_IFCHR, os.makedev(0, 0))  # a whiteout
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY
    linux.mount("overlay", target, "overlay", flags, f"lowerdir={mask}:{target},userxattr")


def pass_to_exec() -> dict[str, str]:
    """Return variables by which a program that this process is about to exec finds the contents of `files`."""
    if not files:
        return {}
    fd = os.memfd_create("withheld", 0)  # inherited across exec
    with open(fd, "wb", closefd=False) as file:
        for name, content in files.items():
            encoded = os.fsencode(name)
            file.write(b"%d %d\n" % (len(encoded), len(content)) + encoded + content)
    os.lseek(fd, 0, os.SEEK_SET)
    return {_VARIABLE: str(fd)}


def receive_from_exec() -> None:
    """Load `files` from the program that has exec'd this one; see `pass_to_exec`."""
    passed = os.environ.pop(_VARIABLE, None)
    if passed is None:
        return
    with open(int(passed), "rb") as file:
        while line := file.readline():
            name, content = (int(word) for word in line.split())
            key = os.fsdecode(file.read(name))
            files[key] = file.read(content)
