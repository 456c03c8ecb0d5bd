"""Translate file errors that an agent may have caused into `StateDestroyed`."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from aenv.errors import StateDestroyed

_CAUSED_BY_AGENT = (
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG,
)  # fmt: skip


@contextmanager
def raising_state_destroyed(what: str) -> Iterator[None]:
    """Raise `StateDestroyed` for an `OSError` of the block that the agent's programs may have caused.

    They can remove a folder, replace it and change its permissions. Such an act must not make the reward absent.

    Raises:
        StateDestroyed: a file or folder is missing, of another type, or not accessible.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _CAUSED_BY_AGENT:
            raise
        raise StateDestroyed(f"{what}: {error.strerror}") from error
