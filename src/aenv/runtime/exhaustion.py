"""Whether a reward failed because the instance has nothing left.

An agent that uses up its disk or its processes, or closes the place for temporary files, must not be able to leave its
own reward out.
"""

from __future__ import annotations

import errno
import os
import tempfile
import traceback

_STARTERS = ("orphans.py", "subprocess.py", "popen_fork.py", "popen_spawn_posix.py", "threading.py", "pty.py")
"""Files of what starts a process: ours, which wraps ``fork``, and the standard library's."""


def what_is_used_up(error: BaseException) -> str | None:
    """What the instance has run out of, if that is why something was raised."""
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
    """Whether that is still so: the author's own work may have filled it, and have made room again."""
    for place in (error.filename, "/tmp"):
        try:
            about = os.statvfs(place or "/tmp")
        except OSError:
            continue
        if about.f_bavail * about.f_frsize < 1 << 16 or about.f_favail == 0:
            return True
    return False


def _no_temporary_place(error: OSError) -> bool:
    """Whether the standard library's own place for temporary files is gone, full or closed: programs can do that."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    if not any(os.path.basename(frame.filename) == "tempfile.py" for frame in frames):
        return False
    if error.filename is None:  # it has looked for one, and found none
        return error.errno == errno.ENOENT
    there, named = os.path.realpath(tempfile.gettempdir()), os.path.realpath(str(error.filename))
    return there in (named, os.path.dirname(named))


def _no_process(error: BaseException) -> bool:
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return True
    if not isinstance(error, OSError) or error.errno not in (errno.EAGAIN, errno.ENOMEM):
        return False
    # Not any such number: it is also what a socket says that has nothing to read.
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return any(os.path.basename(frame.filename) in _STARTERS for frame in frames)
