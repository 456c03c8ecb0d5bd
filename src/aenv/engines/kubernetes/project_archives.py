"""Archives of projects, for pods that have no other way to their files.

An archive is made once per state of the project's files, and is removed when it has not been used by the last `MOST`
others.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import stat
import tarfile
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from aenv.engines.base import SandboxSpec
from aenv.engines.project_archive import project_members, without_owner
from aenv.errors import LoadError

MOST = 64


class ProjectArchives:
    """A folder of archives, named by their digests."""

    def __init__(self, folder: Path) -> None:
        """``folder``: for the archives; it need not exist yet."""
        self._folder = folder
        self._archives: dict[str, str] = {}
        """Digest of the archive by the state of the project's files, least recently used first."""
        self._locks: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def digest_of(self, spec: SandboxSpec, keep: Collection[str] = ()) -> str:
        """Make the project's archive, if necessary, and return its digest. ``keep``: archives that are in use.

        Raises:
            LoadError: the project cannot be read.
        """
        try:
            async with self._locks[spec.project]:
                state = await asyncio.to_thread(_state_of, spec)
                digest = self._archives.pop(state, "") or await asyncio.to_thread(self._write, spec)
                self._archives[state] = digest
        except OSError as error:
            raise LoadError(f"the project {spec.project} cannot be read: {error}") from error
        self._trim(keep)
        return digest

    def file(self, digest: str) -> Path:
        """Return the path of an archive."""
        return self._folder / f"{digest}.tar.gz"

    def close(self) -> None:
        """Remove all archives."""
        for digest in self._archives.values():
            self.file(digest).unlink(missing_ok=True)
        self._archives.clear()
        if self._folder.is_dir():
            self._folder.rmdir()

    def _trim(self, keep: Collection[str]) -> None:
        for state, digest in list(self._archives.items())[:-MOST]:
            if digest not in keep:
                del self._archives[state]
                if digest not in self._archives.values():
                    self.file(digest).unlink(missing_ok=True)

    def _write(self, spec: SandboxSpec) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        made = self._folder / f"{secrets.token_hex(8)}.part"
        try:
            with tarfile.open(made, "w:gz", compresslevel=1) as archive:
                for path in project_members(spec):
                    archive.add(path, path.relative_to(spec.project).as_posix(), recursive=False, filter=without_owner)
            with made.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            made.replace(self.file(digest))
        except BaseException:
            made.unlink(missing_ok=True)
            raise
        return digest


def _state_of(spec: SandboxSpec) -> str:
    """Return a key of the project's files: the same as long as none is changed."""
    state = hashlib.sha256(str(spec.project).encode(errors="surrogateescape"))
    for path in project_members(spec):
        about = path.lstat()
        kind = stat.S_IFMT(about.st_mode)
        state.update(f"{path}\0{kind}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ino}\n".encode(errors="replace"))
    return state.hexdigest()
