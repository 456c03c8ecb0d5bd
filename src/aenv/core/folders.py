"""A folder as a tar that is made and unpacked while it goes by, so that its size does not matter.

What comes in may be made to harm, on both sides: an instance gets what callers send, and callers get what an
instance's code may have arranged. So nothing is written outside of the folder that was named: no name that leads out of
it, nothing through a link, no link that leads out, and nothing but folders, files and links. Files are reached from
folder to folder by their descriptors, so that a link which appears meanwhile changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import shutil
import socket
import stat
import tarfile
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

from aenv.errors import UsageError

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]

CHUNK = 256 * 1024
MEMBERS = 1_000_000
"""So many files and folders one tar may have."""
MAX_NAME = 64 * 1024
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpacked(NamedTuple):
    """What came out of a tar."""

    files: int
    size: int
    """Bytes in these files."""


# --- as it goes by


async def packed(path: Path, in_thread: InThread[None], name: str = "") -> AsyncGenerator[bytes]:
    """The tar of a folder's content, or of one file under its own name, or another ``name``.

    Raises:
        UsageError: there is something that such a tar does not carry.
        OSError: something cannot be read.
    """
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=CHUNK)

    def work() -> None:
        with open(theirs.detach(), "wb", buffering=CHUNK) as out:
            pack(path, out, name)

    working = asyncio.ensure_future(in_thread(work))
    try:
        while data := await reader.read(CHUNK):
            yield data
        await working
    finally:
        await _end(writer, working)


async def unpacked(
    stream: AsyncIterable[bytes], target: Path, in_thread: InThread[Unpacked], *, may_be_file: bool = False
) -> Unpacked:
    """Unpack a tar into a folder, which is made if it is not there. What was unpacked before an error stays.

    ``may_be_file``: a tar of one file, which does not begin with the folder itself, becomes the file ``target``; where
    that is a folder, a file in it.

    Raises:
        UsageError: it is not a tar, or one that must not be unpacked.
        OSError: something cannot be written.
    """
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours, limit=CHUNK)

    def work() -> Unpacked:
        with open(theirs.detach(), "rb", buffering=CHUNK) as source:
            done = unpack(source, target, may_be_file=may_be_file)
            while source.read(CHUNK):  # what a tar program has put behind the end
                pass
            return done

    working = asyncio.ensure_future(in_thread(work))
    try:
        async for data in stream:
            writer.write(data)
            try:
                await writer.drain()
            except OSError:  # the thread has had enough, and says why
                break
        else:
            writer.write_eof()
        return await working
    finally:
        await _end(writer, working)


async def _end(writer: asyncio.StreamWriter, working: asyncio.Future[T]) -> None:
    """Hang up, which ends the thread, and see it end."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    await asyncio.wait({working})
    if not working.cancelled():
        working.exception()  # seen; who waits for it has it already


# --- making


def pack(path: Path, out: IO[bytes], name: str = "") -> None:
    """Write the tar of a folder's content, or of one file."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK) as tar:
        if not path.is_dir():
            with path.open("rb") as file:
                _put_file(tar, name or path.name, file)
            return
        about = tarfile.TarInfo(".")
        about.type, about.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(about)
        for inside, found in _below(path, ""):
            _put(tar, inside, found)


def _below(folder: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            yield prefix + entry.name, entry
            if entry.is_dir(follow_symlinks=False):
                yield from _below(Path(entry.path), f"{prefix}{entry.name}/")


def _put(tar: tarfile.TarFile, name: str, found: os.DirEntry[str]) -> None:
    if found.is_symlink():
        about = tarfile.TarInfo(name)
        about.type, about.linkname = tarfile.SYMTYPE, os.readlink(found.path)
        _check_link(name, about.linkname)
        tar.addfile(about)
    elif found.is_dir():
        about = tarfile.TarInfo(name)
        about.type, about.mode = tarfile.DIRTYPE, stat.S_IMODE(found.stat().st_mode)
        tar.addfile(about)
    elif found.is_file():
        with open(found.path, "rb") as file:
            _put_file(tar, name, file)
    else:
        raise UsageError(f"'{name}' is neither a file nor a folder nor a link", {"hint": "Leave it out."})


def _put_file(tar: tarfile.TarFile, name: str, file: IO[bytes]) -> None:
    facts = os.fstat(file.fileno())
    about = tarfile.TarInfo(name)
    about.size, about.mode, about.mtime = facts.st_size, stat.S_IMODE(facts.st_mode), int(facts.st_mtime)
    tar.addfile(about, file)


# --- unpacking


class _Brief(tarfile.TarInfo):
    """A member whose name and the like are read into memory only if they are not long."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        told_of_others = self.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, *_LONG)
        if told_of_others and self.size > MAX_NAME:
            raise UsageError("a name in the tar is too long")
        made: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return made


def unpack(source: IO[bytes], target: Path, *, may_be_file: bool = False) -> Unpacked:
    """Unpack a tar into a folder, or as one file."""
    files = size = 0
    try:
        with (
            tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK, tarinfo=_Brief) as tar,
            contextlib.ExitStack() as folders,
        ):
            about = tar.next()
            alone = may_be_file and about is not None and about.isreg()
            if alone and about is not None and not target.is_dir():
                target, about.name = target.parent, target.name
            root = folders.enter_context(_opened(target))
            for number in range(MEMBERS + 1):
                if about is None:
                    break
                if number == MEMBERS or (alone and number):
                    raise UsageError("the tar has more in it than it should")
                _take(tar, about, root)
                files, size = files + about.isreg(), size + (about.size if about.isreg() else 0)
                tar.members.clear()  # type: ignore[attr-defined]  # it would remember them all
                about = tar.next()
    except (tarfile.TarError, EOFError, UnicodeDecodeError) as error:
        raise UsageError(f"this is not a whole tar: {error}") from None
    return Unpacked(files, size)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take(tar: tarfile.TarFile, about: tarfile.TarInfo, root: int) -> None:
    parts = _parts(about.name)
    if not parts:
        if about.isdir():
            return  # the folder itself
        raise UsageError(f"'{about.name}' is not the name of a file")
    if not (about.isdir() or about.issym() or (about.isreg() and not about.issparse())):
        raise UsageError(f"'{about.name}' is neither a file nor a folder nor a link")
    with _parent(root, parts) as folder:
        if about.isdir():
            with _inside(folder, parts[-1], about.name) as made:
                os.fchmod(made, (about.mode & 0o777) | 0o700)
            return
        _make_room(folder, parts[-1], about.name)
        if about.issym():
            _check_link(about.name, about.linkname)
            os.symlink(about.linkname, parts[-1], dir_fd=folder)
            return
        data = tar.extractfile(about)
        assert data is not None
        with open(os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=folder), "wb", buffering=0) as file:
            shutil.copyfileobj(data, file, CHUNK)
            os.fchmod(file.fileno(), about.mode & 0o777)
            os.utime(file.fileno(), (about.mtime, about.mtime))


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise UsageError(f"'{name}' leads out of the folder")
    return parts


def _check_link(name: str, target: str) -> None:
    where = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    if target.startswith("/") or not target or where == ".." or where.startswith("../"):
        raise UsageError(
            f"the link '{name}' leads out of the folder, to '{target}'",
            {"hint": "Leave it out, or copy what it leads to."},
        )


@contextlib.contextmanager
def _parent(root: int, parts: list[str]) -> Iterator[int]:
    """The folder that a member is in, made if it is not there."""
    folder = os.dup(root)
    try:
        for number, part in enumerate(parts[:-1]):
            with _inside(folder, part, "/".join(parts[: number + 1])) as inner:
                os.dup2(inner, folder, inheritable=False)
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def _inside(folder: int, name: str, shown: str) -> Iterator[int]:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=folder)
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except NotADirectoryError:
        raise UsageError(f"'{shown}' is there and not a folder, or a link") from None
    try:
        yield inner
    finally:
        os.close(inner)


def _make_room(folder: int, name: str, shown: str) -> None:
    """A file, or a link, that is there is replaced; what it is linked to is not touched."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise UsageError(f"'{shown}' is there, and is a folder") from None
        raise
