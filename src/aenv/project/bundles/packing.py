"""Make a bundle of a project: read its files, split them into blobs, and name each by its digest."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aenv.errors import ConfigError, Conflict
from aenv.project import manifest
from aenv.project.project_files import Source, sources
from aenv.project.view_layout import check_view
from aenv.schema.bundle import (
    BLOB_LIMIT,
    CONFIG,
    Bundle,
    BundleFile,
    BundleLink,
    check_path,
    check_target,
    digest_of,
    explain,
)
from aenv.schema.names import check_version

THREADS = min(8, os.cpu_count() or 1)
"""Threads for hashing, which releases the GIL."""


@dataclass(frozen=True)
class PackedBlob:
    """Location of a blob's bytes in a file."""

    path: Path
    offset: int
    size: int


@dataclass(frozen=True)
class Packed:
    """A bundle and the locations of its blobs."""

    root: Path
    bundle: Bundle
    pieces: dict[str, PackedBlob]
    warnings: tuple[str, ...] = ()

    def read(self, digest: str) -> bytes:
        """Return the bytes of a blob.

        Raises:
            Conflict: the file has changed since the bundle was made.
        """
        piece = self.pieces[digest]
        with piece.path.open("rb") as file:
            file.seek(piece.offset)
            data = file.read(piece.size)
        if digest_of(data) != digest:
            raise Conflict(f"{piece.path} has changed in the meantime", details={"hint": "Run the command again."})
        return data


def pack(root: Path, *, version: str | None = None, progress: Callable[[int], None] = lambda size: None) -> Packed:
    """Return the bundle of the project in ``root``, with its own version or the given one.

    Raises:
        ConfigError: the config.json or a file name is not allowed in a bundle; with every problem.
    """
    root = root.absolute()
    loaded = manifest.load(root)
    config: dict[str, Any] = loaded.manifest.document()
    if version is not None:
        try:
            config["version"] = check_version(version)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    check_view(root)
    found = [source for source in sources(root) if source.path != CONFIG]
    _check(found)
    pieces: dict[str, PackedBlob] = {}
    files: list[BundleFile] = []
    with ThreadPoolExecutor(THREADS) as pool:
        for file, blobs in pool.map(_read, [source for source in found if not source.entry.is_symlink()]):
            files.append(file)
            pieces.update(blobs)
            progress(file.size)
    links = [BundleLink(path=s.path, target=os.readlink(s.entry.path)) for s in found if s.entry.is_symlink()]
    try:
        bundle = Bundle(name=loaded.manifest.name, version=config["version"], files=files, links=links, config=config)
    except ValidationError as error:
        raise ConfigError(explain(error).replace("the manifest is not valid", "this cannot be a bundle")) from None
    return Packed(root, bundle, pieces, loaded.warnings)


def config_text(bundle: Bundle) -> bytes:
    """Return the config.json of a bundle as it is unpacked."""
    return manifest.text(bundle.config)


def _check(found: list[Source]) -> None:
    problems = []
    for source in found:
        try:
            check_path(source.path)
            if source.entry.is_symlink():
                check_target(source.path, os.readlink(source.entry.path))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        more = [f"and {len(problems) - 20} more"] if len(problems) > 20 else []
        raise ConfigError(
            "\n".join(["these files cannot be part of a bundle:", *problems[:20], *more]),
            {"hint": "Rename or remove them, or list them in .aenvignore."},
        )


def _read(source: Source) -> tuple[BundleFile, dict[str, PackedBlob]]:
    blobs: list[str] = []
    pieces: dict[str, PackedBlob] = {}
    size = 0
    with open(source.entry.path, "rb", buffering=0) as file:
        mode = os.fstat(file.fileno()).st_mode
        for data in _chunks(file.fileno()):
            digest = digest_of(data)
            pieces[digest] = PackedBlob(Path(source.entry.path), size, len(data))
            blobs.append(digest)
            size += len(data)
    return BundleFile(path=source.path, mode=0o755 if mode & stat.S_IXUSR else 0o644, size=size, blobs=blobs), pieces


def _chunks(descriptor: int) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks of `BLOB_LIMIT`; only the last may be shorter."""
    while True:
        parts, left = [], BLOB_LIMIT
        while left and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
        if parts:
            yield parts[0] if len(parts) == 1 else b"".join(parts)
        if left:
            return
