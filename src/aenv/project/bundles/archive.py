"""A bundle as a single file, for use without a hub.

A plain tar: the manifest, then each blob under the name of its digest. The content does not depend on the machine or
the clock, so the same project gives the same bytes. It is not compressed, since the output of a compressor changes with
its version. Reading accepts exactly the members, names and types that writing produces.
"""

from __future__ import annotations

import os
import secrets
import tarfile
from pathlib import Path
from typing import BinaryIO, NamedTuple

from aenv.errors import InvalidBundle, UsageError
from aenv.project.bundles.packing import Packed
from aenv.project.project_files import BUNDLE_SUFFIX
from aenv.schema.bundle import MANIFEST_LIMIT, Bundle, parse

MANIFEST = "bundle.json"
_BLOCK = 512
_END = b"\0" * _BLOCK


def file_name(bundle: Bundle) -> str:
    """Return the file name of a bundle."""
    return f"{bundle.name}-{bundle.version}{BUNDLE_SUFFIX}"


def write(packed: Packed, path: Path) -> None:
    """Write the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            _put(file, MANIFEST, packed.bundle.model_dump_json().encode())  # keys stay in the author's order
            for digest in packed.bundle.blobs():
                _put(file, _member(digest), packed.read(digest))
            file.write(_END * 2)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class Archive:
    """An open bundle file whose manifest has been read and checked."""

    def __init__(self, path: Path) -> None:
        """Read the manifest and index the blobs.

        Raises:
            UsageError: the file cannot be opened.
            InvalidBundle: the file is not a bundle, or is unsafe to unpack.
        """
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        try:
            self.bundle, self._places = self._index()
        except ValueError as error:
            self._file.close()
            raise InvalidBundle(f"{path.name}: {error}") from None

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    async def fetch(self, digest: str) -> bytes:
        """Return the bytes of a blob."""
        place = self._places[digest]
        return os.pread(self._file.fileno(), place.size, place.offset)

    def _index(self) -> tuple[Bundle, dict[str, _Place]]:
        size = os.fstat(self._file.fileno()).st_size
        head = _header(self._file, 0, size)
        if head.name != MANIFEST or head.size > MANIFEST_LIMIT:
            raise ValueError(f"it does not begin with a {MANIFEST}, so it is not a bundle")
        bundle = parse(os.pread(self._file.fileno(), head.size, head.offset))
        places: dict[str, _Place] = {}
        at = head.end
        for digest, length in bundle.blobs().items():
            place = _header(self._file, at, size)
            if place.name != _member(digest) or place.size != length:
                raise ValueError(f"expected {digest} with {length} bytes, found '{place.name}'")
            places[digest] = place
            at = place.end
        if os.pread(self._file.fileno(), 2 * _BLOCK + 1, at) != _END * 2:
            raise ValueError("it contains more than its manifest lists")
        return bundle, places


class _Place(NamedTuple):
    name: str
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + -(-self.size // _BLOCK) * _BLOCK


def _put(file: BinaryIO, name: str, data: bytes) -> None:
    file.write(_head(name, len(data)))
    file.write(data)
    file.write(b"\0" * (-len(data) % _BLOCK))


def _head(name: str, size: int) -> bytes:
    about = tarfile.TarInfo(name)
    about.size, about.mode = size, 0o644
    return about.tobuf(tarfile.USTAR_FORMAT)


def _member(digest: str) -> str:
    return f"blobs/{digest.replace(':', '-')}"


def _header(file: BinaryIO, at: int, end: int) -> _Place:
    """Parse the member header at offset ``at``. It must equal the header that `write` produces."""
    raw = os.pread(file.fileno(), _BLOCK, at)
    try:
        about = tarfile.TarInfo.frombuf(raw, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError):
        raise ValueError("it is truncated, or not a bundle") from None
    if raw != _head(about.name, about.size):
        raise ValueError(f"'{about.name[:80]}' is not a plain member of a bundle")
    place = _Place(about.name, at + _BLOCK, about.size)
    if place.end > end:
        raise ValueError("it is truncated")
    return place
