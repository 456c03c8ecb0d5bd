"""Unpack the layers of an image, which are untrusted tars, on top of each other.

Every path is resolved inside the target, including symbolic links; owners, devices and setuid bits are dropped. A layer
must have the digests and the size that its image declares.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from aenv.isolation.files.rooted_paths import resolve_in_root
from aenv.isolation.files.tar_limits import BoundedTarInfo, clamp_mtime

MOST_BYTES = 32 << 30
MOST_FILES = 4_000_000
MIN_FREE_BYTES = 1 << 30
"""Bytes that must stay free on the disk."""
_WHITEOUT, _OPAQUE, _RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."


class BadImage(Exception):
    """The image cannot be used; the message says why."""


@dataclass(frozen=True)
class Blob:
    """Stored layer of an image, with its declared digests and size."""

    open: Callable[[], IO[bytes]]
    digest: str | None = None
    """Digest of the stored bytes."""
    size: int | None = None
    diff_id: str | None = None
    """Digest of the tar itself, after decompression."""


def unpack_tree(source: IO[bytes], target: Path, below: str) -> None:
    """Unpack an untrusted plain tar below a path in a folder, like `OciImage.unpack` without whiteouts.

    A tar of one file named ``.`` becomes the file ``below``.

    Raises:
        BadImage: the tar is corrupt, or has a path outside of the folder.
    """
    try:
        _Layer(target, UnpackBudget(target), whiteouts=False, below=below).unpack(source)
    except MemoryError:
        raise
    except Exception as error:
        raise BadImage(str(error)) from error


class UnpackBudget:
    """Remaining bytes and files that may be unpacked."""

    def __init__(self, target: Path, limit: int | None = None) -> None:
        self._limit = MOST_BYTES if limit is None else min(limit, MOST_BYTES)
        self._bytes = min(self._limit, max(shutil.disk_usage(target.parent).free - MIN_FREE_BYTES, 0))
        self._files = MOST_FILES

    def spend(self, size: int) -> None:
        """Count a file of this size; raise ValueError beyond the limit."""
        self._bytes -= size
        self._files -= 1
        if self._bytes < 0 or self._files < 0:
            raise ValueError(f"more than {self._limit} bytes or {MOST_FILES} files, or more than the free disk space")


def unpack_layer(layer: Blob, target: Path, budget: UnpackBudget) -> None:
    """Unpack a layer on top of the target, and check its declared digests and size."""
    with layer.open() as source:
        stored = _HashingReader(source)
        buffered = io.BufferedReader(stored, 1 << 16)
        plain = _HashingReader(_decompressed(buffered))
        _Layer(target, budget).unpack(plain)
        for rest in (plain, buffered):  # padding after the end of a tar or of a compressed stream
            while rest.read(1 << 20):
                pass
        if layer.size not in (None, stored.size) or layer.digest not in (None, stored.digest()):
            raise ValueError("the stored bytes do not match the declared digest and size")
        if layer.diff_id not in (None, plain.digest()):
            raise ValueError("the content does not match the declared diff_id")


class _Layer:
    """Unpacks one layer on top of the target's current content."""

    def __init__(self, target: Path, budget: UnpackBudget, *, whiteouts: bool = True, below: str = "") -> None:
        self._target = str(target)
        self._budget = budget
        self._whiteouts = whiteouts
        self._below = below
        self._made: set[str] = set()
        self._modes: dict[str, tuple[int, float]] = {}

    def unpack(self, source: IO[bytes] | _HashingReader) -> None:
        with tarfile.open(fileobj=source, mode="r|", tarinfo=BoundedTarInfo) as archive:
            while (member := archive.next()) is not None:
                self._budget.spend(member.size if member.isreg() else 0)
                self._extract(archive, member)
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all in memory
        for path, (mode, changed) in sorted(self._modes.items(), reverse=True):
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, mode)
                os.utime(path, (changed, changed))

    def _extract(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        folder, name = self._split(member.name)
        if not name:
            return  # the root itself
        parent = resolve_in_root(self._target, folder, make=True)
        path = os.path.join(parent, name)
        if self._whiteouts and name.startswith(_WHITEOUT):
            self._apply_whiteout(parent, name)
        elif member.isdir():
            if not os.path.isdir(path) or os.path.islink(path):
                self._remove_existing(path)
                os.mkdir(path, 0o700)
            self._modes[path] = (member.mode & 0o777 | 0o700, clamp_mtime(member.mtime))
            self._mark_own(path)
        elif member.isreg() or member.issym() or member.islnk():
            self._remove_existing(path)
            self._make(archive, member, path)
            self._mark_own(path)
        # devices and pipes are skipped: a sandbox has its own devices

    def _split(self, name: str) -> tuple[str, str]:
        """Split a member's name into folder and name, relative to the target's root."""
        return os.path.split(os.path.normpath(f"/{self._below}/{os.path.normpath('/' + name)}"))

    def _apply_whiteout(self, parent: str, name: str) -> None:
        """Remove the entry of lower layers that a whiteout names, or all of the folder for an opaque whiteout."""
        hidden = name.removeprefix(_WHITEOUT)
        if name == _OPAQUE:
            for each in os.listdir(parent):
                self._remove_lower(os.path.join(parent, each))
        elif hidden in ("", ".", ".."):
            raise ValueError(f"the whiteout {name!r} does not name a file of its folder")
        elif not name.startswith(_RESERVED):  # other names with this prefix are metadata of aufs
            self._remove_lower(os.path.join(parent, hidden))

    def _make(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if member.issym():
            os.symlink(member.linkname, path)
            return
        if member.islnk():
            folder, name = self._split(member.linkname)
            linked = os.path.join(resolve_in_root(self._target, folder), name)
            if not stat.S_ISREG(os.lstat(linked).st_mode):
                raise ValueError(f"{member.name} is a hard link to {member.linkname}, which is not a regular file")
            os.link(linked, path, follow_symlinks=False)
            return
        content = archive.extractfile(member)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            if content is not None:
                shutil.copyfileobj(content, file, 1 << 20)
            os.fchmod(descriptor, member.mode & 0o777 | 0o400)
        os.utime(path, (clamp_mtime(member.mtime),) * 2)

    def _mark_own(self, path: str) -> None:
        """Record a path and its parents as entries of this layer."""
        while path not in self._made and path != self._target:
            self._made.add(path)
            path = os.path.dirname(path)

    def _remove_existing(self, path: str) -> None:
        """Remove an existing entry that this layer replaces, including a folder, as in an overlay."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)

    def _remove_lower(self, path: str) -> None:
        """Remove a path's entries of lower layers; entries of this layer stay."""
        if os.path.isdir(path) and not os.path.islink(path):
            if path not in self._made:
                shutil.rmtree(path)
                return
            for each in os.listdir(path):
                self._remove_lower(os.path.join(path, each))
        elif path not in self._made and os.path.lexists(path):
            os.unlink(path)


class _HashingReader(io.RawIOBase):
    """Reader that computes the digest and the length of what has been read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        self.size += len(data)
        if self.size > MOST_BYTES + MOST_FILES * 1024:  # every member has a header of one or more blocks
            raise ValueError("the stream is larger than any image that may be unpacked")
        return data

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _decompressed(source: io.BufferedReader[_HashingReader]) -> IO[bytes]:
    """Return the decompressed tar: gzip, bzip2, xz or plain."""
    import bz2
    import gzip
    import lzma

    start = source.peek(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(source)  # type: ignore[return-value]
    if start.startswith(b"BZh"):
        return bz2.open(source)
    if start.startswith(b"\xfd7zXZ"):
        return lzma.open(source)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        raise ValueError("zstd is not supported; save the image with gzip")
    return source
