"""Pack and unpack folders as streamed tars, with constant memory whatever their size.

Incoming tars are untrusted on both sides: an instance gets tars from callers, and callers get tars that an instance's
code may have forged. So nothing is written outside of the target folder: no absolute path or ``..``, nothing through a
symbolic link, no link that leads out, and only folders, files and links. Folders are opened one by one through their
file descriptors (openat), so a link that appears meanwhile changes nothing. Any other tar is refused with the name of
the member.

For outgoing tars of an instance, its programs must not be able to keep a caller from reading a folder by putting a pipe
or a link to /etc into it. There, unsupported entries are skipped (``on_skipped``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import stat
import tarfile
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

from aenv.errors import UsageError
from aenv.isolation.files.tar_limits import BoundedTarInfo, clamp_mtime

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]

CHUNK = 256 * 1024
MAX_MEMBERS = 1_000_000
"""Files and folders in one tar."""
MAX_DEPTH = 256
"""Nesting depth of folders. Python removes trees recursively, and fails at about 900 levels."""
_BAD_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ)
"""Errors caused by invalid names and links: the tar's fault, not the host's."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpacked(NamedTuple):
    """Totals of an unpacked tar."""

    files: int
    size: int
    """Bytes in all files."""


# --- streaming


OnSkipped = Callable[[str, Exception], None]


async def pack_stream(
    path: Path, in_thread: InThread[None], name: str = "", *, on_skipped: OnSkipped | None = None
) -> AsyncGenerator[bytes]:
    """Yield the tar of a folder's content, or of one file under its own name or ``name``.

    ``on_skipped`` is called with each entry that is unsupported or unreadable; without it, that is an error.

    Raises:
        UsageError: an entry is neither a file nor a folder nor a link, or its link leads out of the folder.
        OSError: an entry cannot be read.
    """
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=CHUNK)

    def work() -> None:
        with open(theirs.detach(), "wb", buffering=CHUNK) as out:
            pack(path, out, name, on_skipped=on_skipped)

    working = asyncio.ensure_future(in_thread(work))
    try:
        while data := await reader.read(CHUNK):
            yield data
        await working
    finally:
        await _finish(writer, working)


async def unpack_stream(
    stream: AsyncIterable[bytes], target: Path, in_thread: InThread[Unpacked], *, file_name: str = ""
) -> Unpacked:
    """Unpack a tar into a folder, which is created if missing. What was unpacked before an error stays.

    With a ``file_name``, a tar of one file, which does not begin with the folder itself, becomes the file ``target``;
    if that is a folder, the file ``file_name`` in it, whatever its name in the tar.

    Raises:
        UsageError: not a tar, or one that must not be unpacked.
        OSError: an entry cannot be written.
    """
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours, limit=CHUNK)

    def work() -> Unpacked:
        with open(theirs.detach(), "rb", buffering=CHUNK) as source:
            done = unpack(source, target, file_name=file_name)
            while source.read(CHUNK):  # padding after the end of the tar
                pass
            return done

    working = asyncio.ensure_future(in_thread(work))
    try:
        async for data in stream:
            writer.write(data)
            try:
                await writer.drain()
            except OSError:  # the thread has stopped reading; awaiting it raises its error
                break
        else:
            writer.write_eof()
        return await working
    finally:
        await _finish(writer, working)


async def _finish(writer: asyncio.StreamWriter, working: asyncio.Future[T]) -> None:
    """Close the connection, which ends the thread, and wait for the thread."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    await asyncio.wait({working})
    if not working.cancelled():
        working.exception()  # mark as retrieved; the caller awaits it itself


# --- packing


def pack(path: Path, out: IO[bytes], name: str = "", *, on_skipped: OnSkipped | None = None) -> None:
    """Write the tar of a folder's content, or of one file."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK) as tar:
        if not path.is_dir():
            with _open_file(path, name or path.name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) as file:
                tar.addfile(_file_info(name or path.name, file), _ZeroPadded(file))
            return
        about = tarfile.TarInfo(".")
        about.type, about.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(about)
        for inside, found in _walk(path, "", on_skipped):
            with contextlib.ExitStack() as opened:
                try:
                    about, content = _member_info(inside, found, opened)
                except (UsageError, OSError) as error:
                    if on_skipped is None:
                        raise
                    on_skipped(inside, error)
                    continue
                tar.addfile(about, None if content is None else _ZeroPadded(content))


def _walk(folder: Path, prefix: str, on_skipped: OnSkipped | None) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all entries below a folder, parents first."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        if prefix.count("/") >= MAX_DEPTH and found:
            raise UsageError(f"'{prefix[:200]}' is more than {MAX_DEPTH} folders deep", {"hint": "Leave it out."})
    except (UsageError, OSError) as error:
        if on_skipped is None:
            raise
        on_skipped(prefix, error)
        return
    for entry in found:
        yield prefix + entry.name, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", on_skipped)


def _member_info(
    name: str, found: os.DirEntry[str], opened: contextlib.ExitStack
) -> tuple[tarfile.TarInfo, IO[bytes] | None]:
    """Return the tar header of a file, folder or link, and the open file."""
    about = tarfile.TarInfo(name)
    if found.is_symlink():
        about.type, about.linkname = tarfile.SYMTYPE, os.readlink(found.path)
        _check_link(name, about.linkname)
    elif found.is_dir():
        about.type, about.mode = tarfile.DIRTYPE, stat.S_IMODE(found.stat().st_mode)
    elif found.is_file():
        file = opened.enter_context(_open_file(found.path, name, _OLD_FILE))
        return _file_info(name, file), file
    else:
        raise _unsupported(name)
    return about, None


@contextlib.contextmanager
def _open_file(path: str | Path, name: str, flags: int) -> Iterator[IO[bytes]]:
    """Open a regular file without blocking, even if a pipe has taken its place."""
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a socket
            raise
        raise _unsupported(name) from None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _unsupported(name)
        yield file


def _unsupported(name: str) -> UsageError:
    return UsageError(f"'{name}' is neither a file nor a folder nor a link", {"hint": "Leave it out."})


def _file_info(name: str, file: IO[bytes]) -> tarfile.TarInfo:
    facts = os.fstat(file.fileno())
    about = tarfile.TarInfo(name)
    about.size, about.mode, about.mtime = facts.st_size, stat.S_IMODE(facts.st_mode), int(facts.st_mtime)
    return about


class _ZeroPadded:
    """File padded with zeros if it shrinks while it is read: its size is in the tar header already."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


# --- unpacking


def unpack(source: IO[bytes], target: Path, *, file_name: str = "") -> Unpacked:
    """Unpack a tar into a folder, or as one file."""
    files = size = 0
    try:
        with (
            tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK, tarinfo=BoundedTarInfo) as tar,
            contextlib.ExitStack() as folders,
        ):
            about = tar.next()
            alone = bool(file_name) and about is not None and about.isreg()
            if alone and about is not None:
                is_folder = target.is_dir()
                about.name = file_name if is_folder else target.name
                target = target if is_folder else target.parent
            root = folders.enter_context(_open_folder(target))
            for number in range(MAX_MEMBERS + 1):
                if about is None:
                    break
                if number == MAX_MEMBERS or (alone and number):
                    raise UsageError(f"the tar has more than {1 if alone else MAX_MEMBERS} members")
                _extract(tar, about, root)
                files, size = files + about.isreg(), size + (about.size if about.isreg() else 0)
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all in memory
                about = tar.next()
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise UsageError(f"this is not a complete tar: {error}") from None
    return Unpacked(files, size)


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _extract(tar: tarfile.TarFile, about: tarfile.TarInfo, root: int) -> None:
    parts = _parts(about.name)
    if not parts:
        if about.isdir():
            return  # the folder itself
        raise UsageError(f"'{about.name}' is not the name of a file")
    if not (about.isdir() or about.issym() or (about.isreg() and not about.issparse())):
        raise _unsupported(about.name[:200])
    try:
        _write_member(tar, about, root, parts)
    except OSError as error:
        if error.errno not in _BAD_NAMES:
            raise
        raise UsageError(f"'{about.name[:200]}' cannot be unpacked: {error.strerror}") from None


def _write_member(tar: tarfile.TarFile, about: tarfile.TarInfo, root: int, parts: list[str]) -> None:
    with _open_parent(root, parts) as folder:
        if about.isdir():
            with _open_subfolder(folder, parts[-1], about.name) as made:
                os.fchmod(made, (about.mode & 0o777) | 0o700)
            return
        _remove_existing(folder, parts[-1], about.name)
        if about.issym():
            _check_link(about.name, about.linkname)
            os.symlink(about.linkname, parts[-1], dir_fd=folder)
            return
        data = tar.extractfile(about)
        assert data is not None
        with open(os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=folder), "wb", buffering=0) as file:
            shutil.copyfileobj(data, file, CHUNK)
            os.fchmod(file.fileno(), about.mode & 0o777)
            os.utime(file.fileno(), (clamp_mtime(about.mtime),) * 2)


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise UsageError(f"'{name[:200]}' leads out of the folder")
    if len(parts) > MAX_DEPTH:
        raise UsageError(f"'{name[:200]}' is more than {MAX_DEPTH} folders deep")
    return parts


def _check_link(name: str, target: str) -> None:
    """Refuse a link that leads out of the folder, by itself or together with other links.

    Only leading ``..`` are allowed. The folder that a link is in is a real one, so these climb exactly as far as they
    say; behind the name of another link, ``..`` would climb from wherever that one leads.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    depth = len([part for part in name.split("/") if part not in ("", ".")]) - 1
    if target.startswith("/") or not target or "\0" in target or climbs > depth or ".." in parts[climbs:]:
        raise UsageError(
            f"the link '{name[:200]}' leads out of the folder, to '{target[:200]}'",
            {"hint": "Leave it out, or copy what it leads to."},
        )


@contextlib.contextmanager
def _open_parent(root: int, parts: list[str]) -> Iterator[int]:
    """Open the folder of a member, creating it if missing."""
    folder = os.dup(root)
    try:
        for number, part in enumerate(parts[:-1]):
            with _open_subfolder(folder, part, "/".join(parts[: number + 1])) as inner:
                os.dup2(inner, folder, inheritable=False)
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def _open_subfolder(folder: int, name: str, shown: str) -> Iterator[int]:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=folder)
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except NotADirectoryError:
        raise UsageError(f"'{shown}' exists and is a link or not a folder") from None
    try:
        yield inner
    finally:
        os.close(inner)


def _remove_existing(folder: int, name: str, shown: str) -> None:
    """Remove an existing file or link, so that it is replaced; the target of a link is not touched."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise UsageError(f"'{shown}' exists and is a folder") from None
        raise
