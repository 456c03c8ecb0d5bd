"""Blobs: bytes under the digest of themselves, so that whoever reads one can tell that it is the one.

On disk a blob is written beside its place, flushed, and renamed into it: there is the whole blob or none.
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
    """Keeps blobs. Keeping one twice is fine."""

    url: str

    async def put(self, digest: str, data: bytes) -> None:
        """Keep these bytes.

        Raises:
            InvalidBundle: they are not those that the digest names.
        """
        actual = await asyncio.to_thread(digest_of, data)
        if actual != digest:
            raise InvalidBundle(f"the {len(data)} bytes sent as {digest} are {actual}; send the file again")
        await self._write(digest, data)

    @abstractmethod
    async def _write(self, digest: str, data: bytes) -> None: ...

    @abstractmethod
    async def get(self, digest: str) -> bytes:
        """Raises NotFound when it is not there."""

    @abstractmethod
    async def sizes(self, digests: Sequence[str]) -> list[int | None]:
        """How long each is; None where it is not there.

        Who asks is about to need them: an old blob that nobody uses is from now on as good as new, so that
        tidying up does not take it away in the middle of a push.
        """

    @abstractmethod
    async def delete_older(self, digest: str, seconds: float) -> bool:
        """Remove a blob, unless it was written or asked for in the last ``seconds``; whether it is gone."""

    @abstractmethod
    def walk(self) -> AsyncIterator[str]:
        """The digests of all blobs, in no order."""

    def upload_url(self, name: str, *, read: bool) -> str | None:
        """A pre-signed URL under a name of the caller's, where the store has such a thing."""
        return None

    async def close(self) -> None:
        """Let go of connections."""
        return


class DiskBlobs(BlobStore):
    """A folder: ``ab/abcdef…``, 256 folders by the first two digits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder)
        (folder / "parts").mkdir(parents=True, exist_ok=True, mode=0o700)
        self._put_back()

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
            raise InvalidBundle(f"{digest[:80]!r} is not a digest")
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
            raise Unavailable(f"cannot keep a blob in {self.folder}: {error.strerror or error}") from error
        _flush_folder(target.parent)

    def _touch(self, digest: str) -> int | None:
        path = self._path(digest)
        try:
            os.utime(path)
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def _delete_now(self, digest: str, seconds: float) -> bool:
        # Moved away first and looked at there: somebody may ask for it between the look and the end.
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
        except FileNotFoundError:  # a process that just started took it for ours from before a crash
            return False
        return True

    def _put_back(self) -> None:
        """What a process that was killed left: half-written parts go, and what it had moved aside returns."""
        for part in self._parts():
            name, _, kind = part.name.partition(".")
            with contextlib.suppress(OSError):
                if kind == "aside" and not (self.folder / name[:2] / name).exists():
                    part.rename(self.folder / name[:2] / name)
                elif kind == "aside" or part.stat().st_mtime < time.time() - STALE_PART_SECONDS:
                    part.unlink()

    def _parts(self) -> Iterator[Path]:
        return (self.folder / "parts").iterdir()


def _flush_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
