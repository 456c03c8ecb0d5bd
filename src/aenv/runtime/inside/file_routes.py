"""Routes for files: read, write, list, stat, remove, watch.

Paths are resolved by the instance's own kernel namespaces, links included, so none leads to the host. Only regular
files are read and written: a pipe or a device that a program put there would block a thread or never end. Nothing below
/proc is served: there the runtime sees its own descriptors and memory map, which programs of the instance do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl

from pydantic_core import to_json

from aenv.authoring.call import Call
from aenv.errors import AEnvError, Forbidden, FunctionFailed, InvalidArguments, NotFound
from aenv.http.messages import Answer, Receive, Request, Response, Scope, Send, Stream
from aenv.isolation.files.trees import remove_tree
from aenv.runtime.calls.workers import Workers
from aenv.runtime.inside.watch import watch
from aenv.schema import paths
from aenv.schema.inside import MAX_ENTRIES, MOST_ENTRIES, FileEvent, FileInfo

WHOLE = 1 << 20
"""Bytes up to which a file is answered whole."""
CHUNK = 1 << 18
MOST_UNSIZED = 64 << 20
"""Limit for files without a size, such as those in /proc."""
DEEPEST = 64
REMOVE_SECONDS = 120.0
_BINARY = b"content-type: application/octet-stream\r\n"
_NO_WAIT = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
"""O_NOFOLLOW: the path is resolved already, and a program may have put a link there since."""
_TYPES: dict[int, Literal["file", "folder", "link", "other"]] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link",
}  # fmt: skip

T = TypeVar("T")


class FileRoutes:
    """Answers ``/files`` and what is below it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def answer(self, request: Request) -> Answer | None:
        """Answer a request; None if there is no such route."""
        handler = {
            ("GET", paths.FILES): self._read,
            ("PUT", paths.FILES): self._write,
            ("DELETE", paths.FILES): self._remove,
            ("GET", paths.FILE_STAT): self._stat,
            ("GET", paths.FILE_LIST): self._list,
            ("POST", paths.FOLDER): self._make_folder,
            ("GET", paths.FILE_WATCH): self._watch,
        }.get((request.method, request.path))
        if handler is None:
            return None
        query = dict(parse_qsl(request.query.decode("latin-1"), keep_blank_values=True))
        path = path_of(query)
        try:
            refuse_proc(path)
            return await handler(path, query, request)
        except OSError as error:
            raise refused(error, path) from None

    async def _read(self, path: str, query: dict[str, str], request: Request) -> Answer:
        fd, size = await self._in_thread(lambda: _open_to_read(path))
        try:
            if size <= WHOLE:
                data = await self._in_thread(lambda: _read_all(fd, path))
                return Response(200, data, _BINARY)
        except BaseException:
            os.close(fd)
            raise
        else:
            if size <= WHOLE:
                os.close(fd)
        return Stream(self._reading(fd, size))

    def _reading(self, fd: int, size: int) -> Callable[[Scope, Receive, Send], Any]:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await receive()
                gone = asyncio.ensure_future(receive())
                headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % size)]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                left = size
                while left and not gone.done():
                    data = await self._in_thread(partial(os.read, fd, min(left, CHUNK)))
                    if not data:
                        return  # it has shrunk; the reader sees that the body is incomplete
                    left -= len(data)
                    await send({"type": "http.response.body", "body": data, "more_body": bool(left)})
            finally:
                with contextlib.suppress(UnboundLocalError):
                    gone.cancel()
                os.close(fd)

        return app

    async def _write(self, path: str, query: dict[str, str], request: Request) -> Answer:
        await self._in_thread(lambda: _write_all(path, request.body))
        return ok({"path": path, "size": len(request.body)})

    async def _remove(self, path: str, query: dict[str, str], request: Request) -> Answer:
        recursive = flag(query, "recursive")
        await self._in_thread(lambda: _remove_path(path, recursive=recursive))
        return ok({"path": path})

    async def _stat(self, path: str, query: dict[str, str], request: Request) -> Answer:
        info = await self._in_thread(lambda: describe(path, os.lstat(path)))
        return ok(info.model_dump())

    async def _list(self, path: str, query: dict[str, str], request: Request) -> Answer:
        depth, limit = _number(query, "depth", 1, DEEPEST), _number(query, "limit", MAX_ENTRIES, MOST_ENTRIES)
        found = await self._in_thread(lambda: _list_folder(path, depth, limit))
        return ok([each.model_dump() for each in found])

    async def _make_folder(self, path: str, query: dict[str, str], request: Request) -> Answer:
        await self._in_thread(lambda: os.makedirs(path, exist_ok=True))
        return ok({"path": path})

    async def _watch(self, path: str, query: dict[str, str], request: Request) -> Answer:
        events = watch(path, recursive=flag(query, "recursive"), in_thread=self._in_thread)
        await anext(events)  # from here on no change is missed; raises OSError if there is no such path
        return Stream(_following(events))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        done: T = await self._workers.run(work, Call("files"))
        return done


def _following(events: AsyncIterator[FileEvent | None]) -> Callable[[Scope, Receive, Send], Any]:
    async def copy(send: Send) -> None:
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"type":"ready"}\n', "more_body": True})
        async for event in events:
            if event is not None:
                body = to_json(event.model_dump()) + b"\n"
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        gone, copying = asyncio.ensure_future(receive()), asyncio.ensure_future(copy(send))
        try:
            await asyncio.wait({gone, copying}, return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
        finally:
            for task in (gone, copying):
                task.cancel()
            await asyncio.wait({gone, copying})
            await events.aclose()  # type: ignore[attr-defined]  # an async generator

    return app


# --- the file system


def describe(path: str, about: os.stat_result) -> FileInfo:
    """Return the description of a path from its lstat."""
    kind = _TYPES.get(stat.S_IFMT(about.st_mode), "other")
    target = None
    if kind == "link":
        with contextlib.suppress(OSError):
            target = _shown(os.readlink(path))
    return FileInfo(
        path=_shown(path), type=kind, size=about.st_size, mode=f"{stat.S_IMODE(about.st_mode):o}",
        modified_at=about.st_mtime, target=target,
    )  # fmt: skip


def _shown(path: str) -> str:
    """Return a path as text that can be sent; bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode(errors="replace")


def _list_folder(path: str, depth: int, limit: int) -> list[FileInfo]:
    found: list[FileInfo] = []
    folders = [(path, 1)]
    while folders:
        folder, level = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        found.append(describe(entry.path, entry.stat(follow_symlinks=False)))
                    if len(found) > limit:
                        raise InvalidArguments(
                            f"{_shown(path)} has over {limit} entries; pass a higher limit (at most {MOST_ENTRIES}), "
                            "or list a folder inside of it"
                        )
                    if level < depth and entry.is_dir(follow_symlinks=False):
                        folders.append((entry.path, level + 1))
        except OSError:
            if level == 1:
                raise
    return sorted(found, key=lambda info: info.path)


def _open_to_read(path: str) -> tuple[int, int]:
    fd = os.open(os.path.realpath(path), os.O_RDONLY | _NO_WAIT)
    try:
        about = os.fstat(fd)
        _need_regular(about, path)
    except BaseException:
        os.close(fd)
        raise
    return fd, about.st_size


def _read_all(fd: int, path: str) -> bytes:
    data = bytearray()
    while part := os.read(fd, CHUNK):
        data += part
        if len(data) > MOST_UNSIZED:
            raise InvalidArguments(f"{path} has no known size and over {MOST_UNSIZED} bytes")
    return bytes(data)


def _write_all(path: str, data: bytes) -> None:
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    fd = os.open(os.path.realpath(path), os.O_WRONLY | os.O_CREAT | _NO_WAIT, 0o666)
    try:
        _need_regular(os.fstat(fd), path)
        os.ftruncate(fd, 0)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
    finally:
        os.close(fd)


def _need_regular(about: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
    if not stat.S_ISREG(about.st_mode) or about.st_dev == os.stat("/proc").st_dev:
        raise InvalidArguments(f"{path} is not a regular file")


def _remove_path(path: str, *, recursive: bool) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    elif not recursive:
        os.rmdir(path)
    elif os.path.realpath(path) == "/":
        raise InvalidArguments("the root folder cannot be removed")
    else:
        remove_tree(path, REMOVE_SECONDS)
        if os.path.lexists(path):
            raise Forbidden(f"some of {path} could not be removed")


# --- requests and errors


def path_of(query: dict[str, str]) -> str:
    """Return the parameter ``path``. Raises InvalidArguments if it is missing."""
    path = query.get("path")
    if not path or "\0" in path:
        raise InvalidArguments("path: missing or invalid; send ?path=/where")
    return path


def refuse_proc(path: str) -> None:
    """Raise Forbidden for a path that leads below /proc."""
    resolved = os.path.realpath(path)
    named = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
    if any(each == "/proc" or each.startswith("/proc/") for each in (os.path.abspath(path), resolved, named)):
        raise Forbidden(f"files below /proc are not served: {path}", details={"hint": f"exec: cat {path}"})


def flag(query: dict[str, str], name: str) -> bool:
    """Return a parameter that is true or false."""
    value = query.get(name, "false").lower()
    if value not in ("1", "true", "0", "false", ""):
        raise InvalidArguments(f"{name}: invalid value '{value[:20]}'; expected true or false")
    return value in ("1", "true")


def _number(query: dict[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise InvalidArguments(f"{name}: invalid value '{text[:20]}'; expected 1 to {most}")
    return int(text)


def refused(error: OSError, path: str) -> AEnvError:
    """Return the error for a file that cannot be read or written, by the party at fault."""
    text = f"{error.strerror or error}: {path}"
    if isinstance(error, FileNotFoundError):
        return NotFound(text)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Forbidden(text)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return FunctionFailed(text)
    return InvalidArguments(text)


def ok(data: Any) -> Response:
    """Return a successful response."""
    return Response(200, to_json({"success": True, "data": data}))
