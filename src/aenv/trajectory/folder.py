"""The folder of a store, and the locks that say which of its files are in use.

    index.sqlite                 the index
    segments/00000001.jsonl.gz   finished episodes; locked by the process that appends to it
    writers/NAME.lock            locked for as long as the writer lives
    writers/NAME/EPISODE.jsonl   events of an episode that is being recorded

Locks are ``flock`` locks, which the kernel releases when their owner dies, however it dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aenv.errors import StorageFull
from aenv.trajectory.segments import sync_folder

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """Paths of a store."""

    root: Path

    @property
    def index(self) -> Path:
        """Return the path of the index."""
        return self.root / "index.sqlite"

    @property
    def segments(self) -> Path:
        """Return the folder of the segments."""
        return self.root / "segments"

    @property
    def writers(self) -> Path:
        """Return the folder of the writers."""
        return self.root / "writers"

    def segment(self, number: int) -> Path:
        """Return the path of a segment."""
        return self.segments / f"{number:08d}.jsonl.gz"

    def segment_files(self) -> dict[int, Path]:
        """Return the segments that exist as files."""
        return {int(path.name.split(".")[0]): path for path in sorted(self.segments.glob("[0-9]*.jsonl.gz"))}

    def lock(self, writer: str) -> Path:
        """Return the path of a writer's lock."""
        return self.writers / f"{writer}.lock"

    def live(self, writer: str, episode: str) -> Path:
        """Return the path of an episode that is being recorded."""
        return self.writers / writer / f"{episode}.jsonl"

    def create(self) -> None:
        """Create the folders. Only their owner may read them: trajectories can hold anything."""
        for path in (self.root, self.segments, self.writers):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)


def try_lock(descriptor: int) -> bool:
    """Lock a file for this process; return False if another one has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def claim_writer(folder: StoreFolder, name: str) -> int:
    """Create and lock a writer's lock and folder, and return the descriptor that holds the lock.

    The lock is held before it has its name: a process that recovers dead writers never sees it free.
    """
    temporary = folder.writers / f".{name}"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        temporary.rename(folder.lock(name))
        (folder.writers / name).mkdir(mode=0o700)
    except BaseException:
        os.close(descriptor)
        raise
    sync_folder(folder.writers)
    return descriptor


@contextmanager
def dead_writer(folder: StoreFolder, name: str) -> Iterator[bool]:
    """Hold the lock of a writer that is dead; gives False if it lives, or is gone."""
    try:
        descriptor = os.open(folder.lock(name), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        yield try_lock(descriptor) and folder.lock(name).exists()
    finally:
        os.close(descriptor)


@contextmanager
def full_disk_as_error(path: Path) -> Iterator[None]:
    """Raise `StorageFull` where the disk, a quota or a limit on file sizes has no space left."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(
                f"no space left for {path}: {error.strerror}",
                details={"hint": "Free space, for example with: aenv trajectory prune"},
            ) from error
        raise
