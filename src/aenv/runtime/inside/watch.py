"""Watch a file or folder for changes: with inotify, or by comparing listings where there is no inotify left."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

from aenv.errors import InvalidArguments
from aenv.schema.inside import FileEvent

POLL_SECONDS = 0.5
MOST_FOLDERS = 1000
MOST_POLLED = 20_000
"""Entries that are compared where inotify cannot be used."""
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IS_FOLDER = 0x400, 0x800, 0x4000, 0x40000000
_MASK = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_EVENT = struct.Struct("iIII")
_KINDS: tuple[tuple[int, Literal["created", "removed", "modified"]], ...] = (
    (_CREATE | _MOVED_TO, "created"),
    (_DELETE | _MOVED_FROM | _DELETE_SELF | _MOVE_SELF, "removed"),
    (_MODIFY | _ATTRIB, "modified"),
)

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
Listing = dict[str, tuple[int, int, int]]


async def watch(path: str, *, recursive: bool, in_thread: InThread) -> AsyncIterator[FileEvent | None]:
    """Yield None once the watch has begun, and then changes.

    Raises:
        OSError: there is no such path.
        InvalidArguments: there are too many folders or files to watch.
    """
    os.stat(path)
    try:
        inotify = _Inotify(path, recursive=recursive)
    except OSError:  # no inotify instances or watches are left for this user, or there is no inotify
        changes = _polled(path, recursive, in_thread)
    else:
        changes = inotify.changes()
    async with contextlib.aclosing(changes):  # type: ignore[type-var]
        async for change in changes:
            yield change


class _Inotify:
    def __init__(self, path: str, *, recursive: bool) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._recursive = recursive
        self._paths: dict[int, str] = {}
        self._fd = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._add(path)
        except BaseException:
            os.close(self._fd)
            raise

    def _call(self, name: str, *arguments: Any) -> int:
        done: int = getattr(self._libc, name)(*arguments)
        if done < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return done

    def _add(self, path: str) -> list[str]:
        """Watch a path, and the folders in it where asked for. Returns all that was found in new folders."""
        found, waiting = list[str](), [path]
        while waiting:
            folder = waiting.pop()
            if len(self._paths) >= MOST_FOLDERS:
                raise InvalidArguments(f"over {MOST_FOLDERS} folders to watch; watch a folder inside of {path}")
            try:
                self._paths[self._call("inotify_add_watch", self._fd, os.fsencode(folder), _MASK)] = folder
            except FileNotFoundError:
                continue
            if not self._recursive:
                break
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    found.append(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        return found

    async def changes(self) -> AsyncIterator[FileEvent | None]:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._fd, ready.set)
        try:
            yield None
            while True:
                await ready.wait()
                ready.clear()
                last = None
                for event in self._read():
                    if event != last:  # one write of a program may be many changes
                        yield event
                    last = event
        finally:
            loop.remove_reader(self._fd)
            os.close(self._fd)

    def _read(self) -> list[FileEvent]:
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return []
        found, position = list[FileEvent](), 0
        while position < len(data):
            number, mask, _, size = _EVENT.unpack_from(data, position)
            name = data[position + _EVENT.size : position + _EVENT.size + size].rstrip(b"\0")
            position += _EVENT.size + size
            found += self._events(number, mask, name)
        return found

    def _events(self, number: int, mask: int, name: bytes) -> list[FileEvent]:
        folder = self._paths.get(number, "")
        if mask & _OVERFLOW:
            return [FileEvent(type="overflow", path="")]
        if mask & (_DELETE_SELF | _MOVE_SELF) and number != min(self._paths, default=number):
            self._paths.pop(number, None)
            return []  # the folder above reports it
        path = os.path.join(folder, os.fsdecode(name)) if name else folder
        kind = next((kind for bits, kind in _KINDS if mask & bits), None)
        if kind is None or not path:
            return []
        found = [_event(kind, path)]
        if kind == "created" and mask & _IS_FOLDER and self._recursive:
            try:
                found += [_event("created", each) for each in self._add(path)]
            except (OSError, InvalidArguments):
                found.append(FileEvent(type="overflow", path=""))
        return found


async def _polled(path: str, recursive: bool, in_thread: InThread) -> AsyncIterator[FileEvent | None]:
    before: Listing = await in_thread(lambda: _listing(path, recursive=recursive))
    yield None
    while True:
        await asyncio.sleep(POLL_SECONDS)
        now: Listing = await in_thread(lambda: _listing(path, recursive=recursive))
        for each in sorted(before.keys() | now.keys()):
            if before.get(each) != now.get(each):
                yield _event("created" if each not in before else "removed" if each not in now else "modified", each)
        before = now


def _listing(path: str, *, recursive: bool) -> Listing:
    found: Listing = {}
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        with contextlib.suppress(OSError):
            about = os.lstat(folder)
            if not stat.S_ISDIR(about.st_mode):
                found[folder] = (about.st_mtime_ns, about.st_size, about.st_mode)
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        about = entry.stat(follow_symlinks=False)
                        is_folder = stat.S_ISDIR(about.st_mode)
                        # A folder's own time changes with what is in it, which is reported anyway.
                        found[entry.path] = (0, 0, about.st_mode) if is_folder else (
                            about.st_mtime_ns, about.st_size, about.st_mode,
                        )  # fmt: skip
                        if recursive and is_folder:
                            waiting.append(entry.path)
        if len(found) > MOST_POLLED:
            raise InvalidArguments(f"over {MOST_POLLED} files to watch; watch a folder inside of {path}")
    return found


def _event(kind: Literal["created", "removed", "modified"], path: str) -> FileEvent:
    return FileEvent(type=kind, path=os.fsencode(path).decode(errors="replace"))
