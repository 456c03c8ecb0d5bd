"""Blob stores: content-addressed bytes. A reader can verify a blob by its digest.

On disk, a blob is written to a temporary file, flushed and renamed, so that it exists completely or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from aenv.errors import InvalidBundle, NotFound, Unavailable
from aenv.schema.bundle import digest_of

_HEX = re.compile(r"[0-9a-f]{64}")
STALE_PART_SECONDS = 24 * 3600.0


class BlobStore(ABC):
    """A store of blobs. Writing a blob twice is harmless."""

    url: str

    async def put(self, digest: str, data: bytes) -> None:
        """Store a blob.

        Raises:
            InvalidBundle: the bytes do not match the digest.
        """
        actual = await asyncio.to_thread(digest_of, data)
        if actual != digest:
            raise InvalidBundle(f"the {len(data)} bytes sent as {digest} have the digest {actual}; send the file again")
        await self._write(digest, data)

    @abstractmethod
    async def _write(self, digest: str, data: bytes) -> None: ...

    @abstractmethod
    async def get(self, digest: str) -> bytes:
        """Return a blob. Raises NotFound if it does not exist."""

    @abstractmethod
    async def sizes(self, digests: Sequence[str]) -> list[int | None]:
        """Return the size of each blob; None if it does not exist.

        The caller is about to reference these blobs, so this also renews their age: garbage collection must not remove
        an old, unreferenced blob during a push.
        """

    @abstractmethod
    async def delete_older(self, digest: str, seconds: float) -> bool:
        """Delete a blob unless it was written or requested in the last ``seconds``; return whether it is gone."""

    @abstractmethod
    def walk(self) -> AsyncIterator[str]:
        """Yield the digests of all blobs, in no particular order."""

    def upload_url(self, name: str, *, read: bool) -> str | None:
        """Return a pre-signed URL for an object name; None if the store cannot sign URLs."""
        return None

    async def close(self) -> None:
        """Close connections."""
        return


class DiskBlobs(BlobStore):
    """Blobs in a folder, as ``ab/abcdef…``: 256 subfolders by the first two digits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder)
        (folder / "parts").mkdir(parents=True, exist_ok=True, mode=0o700)
        self._recover()

    async def _write(self, digest: str, data: bytes) -> None:
        await asyncio.to_thread(self._write_now, digest, data)

    async def get(self, digest: str) -> bytes:
        try:
            return await asyncio.to_thread(self._path(digest).read_bytes)
        except FileNotFoundError:
            raise NotFound(f"there is no blob {digest}") from None

    async def sizes(self, digests: Sequence[str]) -> list[int | None]:
        return await asyncio.to_thread(lambda: [self._touch(digest) for digest in digests])

    async def delete_older(self, digest: str, seconds: float) -> bool:
        return await asyncio.to_thread(self._delete_now, digest, seconds)

    async def walk(self) -> AsyncIterator[str]:
        for folder in await asyncio.to_thread(lambda: sorted(self.folder.glob("[0-9a-f][0-9a-f]"))):
            for name in await asyncio.to_thread(os.listdir, folder):
                if _HEX.fullmatch(name):
                    yield f"sha256:{name}"

    def _path(self, digest: str) -> Path:
        name = digest.removeprefix("sha256:")
        if not _HEX.fullmatch(name):
            raise InvalidBundle(f"invalid digest {digest[:80]!r}")
        return self.folder / name[:2] / name

    def _write_now(self, digest: str, data: bytes) -> None:
        target = self._path(digest)
        if self._touch(digest) == len(data):
            return
        target.parent.mkdir(exist_ok=True, mode=0o700)
        number, part = tempfile.mkstemp(dir=self.folder / "parts", prefix=f"{target.name}.")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(part, target)
        except OSError as error:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise Unavailable(f"cannot write a blob to {self.folder}: {error.strerror or error}") from error
        _sync_folder(target.parent)

    def _touch(self, digest: str) -> int | None:
        path = self._path(digest)
        try:
            os.utime(path)
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def _delete_now(self, digest: str, seconds: float) -> bool:
        # Move it aside and check its age again there: a request may renew it between the check and the deletion.
        path, aside = self._path(digest), self.folder / "parts" / f"{self._path(digest).name}.aside"
        oldest = time.time() - seconds
        try:
            if path.stat().st_mtime > oldest:
                return False
            path.rename(aside)
        except FileNotFoundError:
            return True
        try:
            if aside.stat().st_mtime > oldest:
                aside.rename(path)
                return False
            aside.unlink()
        except FileNotFoundError:  # a process that just started has restored it, taking it for a crash's leftover
            return False
        return True

    def _recover(self) -> None:
        """Clean up after a killed process: delete stale partial files, and restore blobs that were moved aside."""
        for part in self._parts():
            name, _, kind = part.name.partition(".")
            with contextlib.suppress(OSError):
                if kind == "aside" and not (self.folder / name[:2] / name).exists():
                    part.rename(self.folder / name[:2] / name)
                elif kind == "aside" or part.stat().st_mtime < time.time() - STALE_PART_SECONDS:
                    part.unlink()

    def _parts(self) -> Iterator[Path]:
        return (self.folder / "parts").iterdir()


def _sync_folder(folder: Path) -> None:
    """Sync a folder: a rename is durable only after its folder is synced."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
