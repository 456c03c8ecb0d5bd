"""Sockets that a sandbox makes in a folder that it shares with the host.

Its programs may write to that folder. One that puts a socket of its own there would answer in place of the runtime,
rewards included, and a symbolic link would lead the platform to any socket of the host. So the socket is moved to a
place that the sandbox does not have; connections to it arrive all the same.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from aenv.errors import LoadError
from aenv.isolation.files.trees import remove_tree


def take_socket(shared: Path, own: Path) -> bool:
    """Move a socket from a shared folder to ``own``, in the same file system. Returns whether it is there.

    Raises:
        LoadError: something else is in its place.
    """
    try:
        os.rename(shared, own)
    except FileNotFoundError:
        return own.exists()
    mode = os.lstat(own).st_mode
    if not stat.S_ISSOCK(mode):
        if stat.S_ISDIR(mode):
            remove_tree(own)
        else:
            own.unlink()
        raise LoadError("its code has put something else in the place of its socket")
    return True
