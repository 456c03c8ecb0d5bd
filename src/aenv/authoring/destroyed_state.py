"""Files and folders that an agent has taken away from those who grade it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from aenv.errors import StateDestroyed

_TAKEN_AWAY = (
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG,
)  # fmt: skip


@contextmanager
def blaming_the_agent(what: str) -> Iterator[None]:
    """Programs of the agent can remove folders, put others in their place and take rights away from them. That must
    not leave a reward out.

    Raises:
        StateDestroyed: a file or folder is not there, is something else, or cannot be used.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _TAKEN_AWAY:
            raise
        raise StateDestroyed(f"{what}: {error.strerror}") from error
