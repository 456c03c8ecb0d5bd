"""A lock that lets only one runner work on a run: two would run its episodes twice."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aenv.errors import UsageError


@contextmanager
def only_runner(folder: Path, run: str) -> Iterator[None]:
    """Hold the lock of a run. The kernel releases it when the process dies.

    Raises:
        UsageError: another runner holds it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{hashlib.sha256(run.encode()).hexdigest()[:24]}.lock"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UsageError(f"the run {run} is being worked on by another process") from None
        if _is_at(descriptor, path):  # not removed by its last holder in between
            break
        os.close(descriptor)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
