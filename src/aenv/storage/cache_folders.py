"""Folders of data that can be made again: what each entry takes, when it was last used, and removal of old ones.

An entry is a folder that never changes once it exists. Beside the entries, ``.used/NAME`` holds what is known about
each: its modification time is the last use, its content the size in bytes, and every process that uses the entry has a
shared lock on it. Removal takes the exclusive lock first, so that an entry in use is never removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aenv.tracing.logging import getLogger

log = getLogger("cache")

_USED = ".used"
STAMP_SECONDS = 60.0
"""Seconds within which further uses of an entry are not written down."""
RECENT_SECONDS = 3600.0
"""Seconds after its last use in which an entry is not removed to stay within a budget."""
UNFINISHED_SECONDS = 86400.0
"""Seconds after which an unfinished entry belongs to a process that was killed."""


_MADE = re.compile(r".+\.[a-z0-9_]{8}")
"""Name of a folder in the making: that of the entry and a random suffix."""
_held: dict[Path, tuple[int, float]] = {}
"""Entries that this process uses: the locked descriptor, and when the use was written down."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Entry of a cache."""

    kind: str
    name: str
    path: Path
    bytes: int
    last_used: float
    """Time of the last use, in seconds since 1970."""
    in_use: bool
    """True if a running process uses the entry."""
    pinned: bool = False
    """True if a user has named the entry: it is only removed by that name."""
    unfinished: bool = False
    """True if the entry was left by a process that was killed while it made it."""


@dataclass(slots=True)
class CacheFolder:
    """A folder whose subfolders are entries of one kind."""

    kind: str
    folder: Path
    about: str
    """Description of the entries, in a few words."""
    automatic: bool = True
    """True if entries may be removed without a request: they can be made again."""
    remover: Callable[[Path], None] | None = None
    """Removes an entry; by default its files are deleted as this user."""
    pinned: Callable[[], Collection[str]] = frozenset
    """Names of entries that somebody has named, and that are therefore only removed by name."""
    ignored: tuple[str, ...] = ()
    """Names in the folder that are no entries."""

    def use(self, name: str) -> Path | None:
        """Return an existing entry, which this process then keeps from being removed until it ends; else None."""
        target = self.folder / name
        held = _held.get(target)
        if held is not None and target.is_dir():
            if time.monotonic() - held[1] > STAMP_SECONDS:
                os.utime(held[0])
                _held[target] = (held[0], time.monotonic())
            return target
        self.release(name)  # if it was removed by hand
        while target.is_dir():
            try:
                descriptor = self._open(name)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            except OSError as error:  # a folder of another user: usable, but not marked
                log.debug("cannot mark %s as used: %s", target, error)
                return target
            if os.fstat(descriptor).st_nlink and target.is_dir():
                os.utime(descriptor)
                _held[target] = (descriptor, time.monotonic())
                return target
            os.close(descriptor)  # it was removed in between
        return None

    def entries(self) -> Iterator[CacheEntry]:
        """Yield all entries, with sizes."""
        if not self.folder.is_dir():
            return
        pinned = self.pinned()
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(".") or path.name in self.ignored or path.is_symlink() or not path.is_dir():
                continue
            entry = self._entry(path, path.name in pinned)
            if entry is not None:
                yield entry

    def release(self, name: str) -> None:
        """Take back a `use` of this process."""
        held = _held.pop(self.folder / name, None)
        if held is not None:
            os.close(held[0])

    def remove(self, name: str, *, in_use_too: bool = False) -> bool:
        """Remove an entry unless a process uses it. Returns whether it was removed."""
        try:
            descriptor = self._open(name)
        except OSError:
            return False
        try:
            if not in_use_too:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(descriptor).st_nlink:
                return False
            gone = self.folder / _USED / f"{name}.{os.getpid()}.removed"
            (self.folder / name).rename(gone)  # at once, so that nobody finds half of it
            (self.folder / _USED / name).unlink()
        except OSError as error:
            log.debug("cannot remove %s: %s", self.folder / name, error)
            return False
        finally:
            os.close(descriptor)
        self._delete(gone)
        return True

    def remove_leftovers(self) -> int:
        """Remove what processes left that were killed while they removed an entry. Returns how many there were."""
        left = list((self.folder / _USED).glob("*.removed")) if self.folder.is_dir() else []
        for path in left:
            if not _is_alive(int(path.name.split(".")[-2])):
                self._delete(path)
        return len(left)

    def _delete(self, path: Path) -> None:
        if self.remover is not None:
            self.remover(path)
        else:
            _delete_tree(path)

    def _open(self, name: str) -> int:
        used = self.folder / _USED
        used.mkdir(parents=True, exist_ok=True)
        return os.open(used / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _entry(self, path: Path, pinned: bool) -> CacheEntry | None:
        stamp = self.folder / _USED / path.name
        unfinished = _MADE.fullmatch(path.name) is not None and not stamp.exists()
        try:
            last = (stamp if stamp.exists() else path).stat().st_mtime
            if unfinished and time.time() - last < UNFINISHED_SECONDS:
                unfinished = False
            known = stamp.read_text() if stamp.exists() else ""
            size = int(known) if known.isdigit() else tree_size(path)
            if stamp.exists() and not known:
                os.truncate(stamp, 0)
                stamp.write_text(str(size))
                os.utime(stamp, (last, last))
        except OSError:
            return None  # removed meanwhile
        return CacheEntry(self.kind, path.name, path, size, last, _locked(stamp), pinned, unfinished)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Result of a removal."""

    removed: tuple[CacheEntry, ...]
    kept_in_use: int
    """Number of entries that would have been removed but are in use."""

    @property
    def bytes(self) -> int:
        """Bytes that were freed."""
        return sum(entry.bytes for entry in self.removed)


def prune(
    folders: Iterable[CacheFolder],
    *,
    budget: int | None = None,
    unused_seconds: float = 0.0,
    dry_run: bool = False,
    now: float | None = None,
) -> Pruned:
    """Remove entries, those that were not used for longest first.

    ``budget``: stop as soon as all entries together take at most so many bytes; None removes all. Only entries that
    were not used for ``unused_seconds`` are removed.
    """
    now = time.time() if now is None else now
    by_kind = {folder.kind: folder for folder in folders}
    entries = [entry for folder in by_kind.values() for entry in folder.entries()]
    total = sum(entry.bytes for entry in entries)
    removed: list[CacheEntry] = []
    mounted: str | None = None
    kept = 0
    for entry in sorted(entries, key=lambda entry: (not entry.unfinished, entry.last_used)):
        if budget is not None and total <= budget and not entry.unfinished:
            break
        if now - entry.last_used < unused_seconds and not entry.unfinished:
            continue
        if mounted is None:
            mounted = _mounted_paths()
        if (
            entry.in_use
            or entry.pinned
            or str(entry.path) in mounted
            or not (dry_run or by_kind[entry.kind].remove(entry.name))
        ):
            kept += 1
            continue
        removed.append(entry)
        total -= entry.bytes
    if not dry_run:
        for folder in by_kind.values():
            folder.remove_leftovers()
    return Pruned(tuple(removed), kept)


def tree_size(path: Path) -> int:
    """Return the bytes on disk of a tree; files with several links count once, unreadable folders not at all."""
    total, seen = 0, set()
    for top, folders, names in os.walk(path):
        for name in (*folders, *names):
            try:
                about = os.lstat(os.path.join(top, name))
            except OSError:
                continue
            if about.st_nlink > 1 and not os.path.isdir(os.path.join(top, name)):
                if (about.st_dev, about.st_ino) in seen:
                    continue
                seen.add((about.st_dev, about.st_ino))
            total += about.st_blocks * 512
    return total


def _delete_tree(path: Path) -> None:
    """Delete a tree whose folders may be read-only."""
    for top, folders, _ in os.walk(path):
        for name in (top, *(os.path.join(top, each) for each in folders)):
            if not os.path.islink(name) and not os.access(name, os.W_OK):
                os.chmod(name, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def _locked(stamp: Path) -> bool:
    """Return whether a process holds the lock; the lock is only tried."""
    try:
        descriptor = os.open(stamp, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def _mounted_paths() -> str:
    """Return the mounts of all processes: instances that outlive their platform use entries that nobody has locked."""
    texts: dict[str, str] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                namespace = os.readlink(process / "ns" / "mnt")
                if namespace not in texts:
                    texts[namespace] = (process / "mountinfo").read_text()
    return "\n".join(texts.values())


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
