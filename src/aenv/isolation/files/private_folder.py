"""A project's ``private/`` folder: in the memory of the runtime, and in no file system that a tool's programs see.

The zygote reads it on the host, before it leaves the host's files, as bytes that it does nothing with. Everything that
it forks has them in its memory. In the project's own folder the name is covered.
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
"""To the interpreter that the zygote starts anew for a base: the descriptor of a file with all that was read."""


class TooLargeError(OSError):
    """A ``private/`` folder over the limits: a mistake in the project, not a failure of the host."""

    def __init__(self) -> None:
        limits = f"{MOST_BYTES >> 20} MiB or {MOST_FILES} files"
        super().__init__(f"{FOLDER}/ of the project has more than {limits}, which are kept in memory; put less there")


files: dict[str, bytes] = {}
"""Contents by name, relative to the folder, with ``/`` between the parts."""


def load(project: str | None) -> None:
    """Read the folder of a project, if it has one.

    Links are left out: they could lead to any file that the platform's user may read.

    Raises:
        TooLargeError: it has more than `MOST_BYTES` or `MOST_FILES`.
    """
    files.clear()
    if project is not None and has_folder(project):
        files.update(read(os.path.join(project, FOLDER)))


def has_folder(project: str) -> bool:
    """Whether a project has one; a link to a folder is none."""
    try:
        return stat.S_ISDIR(os.lstat(os.path.join(project, FOLDER)).st_mode)
    except OSError:
        return False


def read(folder: str) -> dict[str, bytes]:
    """All files below a folder, by their relative names."""
    found: dict[str, bytes] = {}
    left = MOST_BYTES
    for place, _, names, here in os.fwalk(folder):
        for name in sorted(names):
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    continue
                raise
            with open(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    continue
                content = file.read(left + 1)
            left -= len(content)
            found[os.path.relpath(os.path.join(place, name), folder)] = content
            if left < 0 or len(found) > MOST_FILES:
                raise TooLargeError
    return found


def hide(target: str, mask: str) -> None:
    """Hide the folder in a project that is shown at ``target``; ``mask`` is where to make a folder for that.

    With an overlay rather than with a mount on the folder: the kernel lets no sandbox have a lower layer in which
    something is mounted.
    """
    os.makedirs(mask)
    os.mknod(os.path.join(mask, FOLDER), stat.S_IFCHR, os.makedev(0, 0))  # how an overlay says that there is nothing
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY
    linux.mount("overlay", target, "overlay", flags, f"lowerdir={mask}:{target},userxattr")


def pass_to_exec() -> dict[str, str]:
    """Variables for a program that this process is about to become, by which it finds what was read."""
    if not files:
        return {}
    fd = os.memfd_create("withheld", 0)  # for the program to inherit
    with open(fd, "wb", closefd=False) as file:
        for name, content in files.items():
            encoded = os.fsencode(name)
            file.write(b"%d %d\n" % (len(encoded), len(content)) + encoded + content)
    os.lseek(fd, 0, os.SEEK_SET)
    return {_VARIABLE: str(fd)}


def receive_from_exec() -> None:
    """In that program."""
    passed = os.environ.pop(_VARIABLE, None)
    if passed is None:
        return
    with open(int(passed), "rb") as file:
        while line := file.readline():
            name, content = (int(word) for word in line.split())
            key = os.fsdecode(file.read(name))
            files[key] = file.read(content)
