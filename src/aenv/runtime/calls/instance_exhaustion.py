"""Detect that a reward failed because the instance has no disk space, processes or temporary folder left.

An agent that uses these up must not be able to void its own reward.
"""

from __future__ import annotations

import errno
import os
import tempfile
import traceback

_STARTERS = ("orphans.py", "subprocess.py", "popen_fork.py", "popen_spawn_posix.py", "threading.py", "pty.py")
"""Files whose functions start processes: ours, which wraps ``fork``, and those of the standard library."""


def exhausted_resource(error: BaseException) -> str | None:
    """Return the resource that the instance has run out of, if that caused the exception."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT) and _disk_is_full(seen):
            return "disk space"
        if _no_process(seen):
            return "processes"
        if isinstance(seen, OSError) and _no_temporary_place(seen):
            return "place for temporary files"
        seen = seen.__cause__ or seen.__context__
    return None


def _disk_is_full(error: OSError) -> bool:
    """Return whether the disk is still full: the environment's own code may have filled it, and freed it again."""
    for place in (error.filename, "/tmp"):
        try:
            about = os.statvfs(place or "/tmp")
        except OSError:
            continue
        if about.f_bavail * about.f_frsize < 1 << 16 or about.f_favail == 0:
            return True
    return False


def _no_temporary_place(error: OSError) -> bool:
    """Return whether the folder for temporary files is gone, full or not writable: programs can cause that."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    if not any(os.path.basename(frame.filename) == "tempfile.py" for frame in frames):
        return False
    if error.filename is None:  # tempfile searched for a folder, and found none
        return error.errno == errno.ENOENT
    there, named = os.path.realpath(tempfile.gettempdir()), os.path.realpath(str(error.filename))
    return there in (named, os.path.dirname(named))


def _no_process(error: BaseException) -> bool:
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return True
    if not isinstance(error, OSError) or error.errno not in (errno.EAGAIN, errno.ENOMEM):
        return False
    # Only where a process is started: a socket without data has the same errno.
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return any(os.path.basename(frame.filename) in _STARTERS for frame in frames)
