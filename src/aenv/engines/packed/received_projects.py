"""Projects on a host: unpacked archives, by the digest of the archive."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import shutil
import tarfile
from collections import Counter
from collections.abc import AsyncIterable
from pathlib import Path

from aenv.engines.kubernetes.bundle_fetch import unpack
from aenv.errors import InvalidArguments, NotFound, Unavailable

MOST_UNUSED = 32
"""Projects without a sandbox that are kept for the next one."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ReceivedProjects:
    """A folder with one subfolder for each project."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._used: Counter[str] = Counter()
        self._unused: dict[str, None] = {}
        """Projects without a sandbox, least recently used first."""

    async def receive(self, digest: str, chunks: AsyncIterable[bytes]) -> None:
        """Unpack an archive that has this digest. Idempotent.

        Raises:
            InvalidArguments: the archive is another one, or is none.
            Unavailable: there is no room for it.
        """
        if not _DIGEST.fullmatch(digest):
            raise InvalidArguments(f"'{digest[:80]}' is not a SHA-256 digest")
        part = self._folder / f"{secrets.token_hex(8)}.part"
        try:
            found = hashlib.sha256()
            with part.open("wb") as file:
                async for chunk in chunks:
                    found.update(chunk)
                    file.write(chunk)
            if found.hexdigest() != digest:
                raise InvalidArguments(f"the archive has the digest {found.hexdigest()}, and not {digest}")
            await asyncio.to_thread(self._unpack, part, digest)
        except (tarfile.TarError, ValueError, EOFError) as error:
            raise InvalidArguments(f"the archive cannot be unpacked: {error}") from error
        except OSError as error:
            raise Unavailable(f"the project cannot be stored on the host: {error}") from error
        finally:
            part.unlink(missing_ok=True)
        if digest not in self._used:
            self._unused[digest] = None
        self._trim()

    def use(self, digest: str) -> Path:
        """Return the project's folder, and keep it until `release`.

        Raises:
            NotFound: it has to be sent first.
        """
        folder = self._folder / digest
        if digest not in self._used and digest not in self._unused:
            raise NotFound(f"project {digest[:80]} is not here", details={"send": "project"})
        self._unused.pop(digest, None)
        self._used[digest] += 1
        return folder

    def release(self, digest: str) -> None:
        """Note that one user of the project is gone."""
        self._used[digest] -= 1
        if not self._used[digest]:
            del self._used[digest]
            self._unused[digest] = None
            self._trim()

    def close(self) -> None:
        """Remove all projects."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _unpack(self, archive: Path, digest: str) -> None:
        target = self._folder / digest
        if target.exists():
            return
        made = archive.with_suffix(".folder")
        try:
            unpack(archive, made)
            made.rename(target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            if not target.exists():
                raise

    def _trim(self) -> None:
        for digest in list(self._unused)[:-MOST_UNUSED]:
            del self._unused[digest]
            shutil.rmtree(self._folder / digest, ignore_errors=True)
