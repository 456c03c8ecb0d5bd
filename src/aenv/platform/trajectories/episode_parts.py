"""Parts of an episode: its events in compressed blobs of about 1 MiB, so that a window of them can be read alone.

Every part begins with a line that names the upload. So no two uploads share a blob, and deleting one episode cannot
take the events of another.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from aenv.errors import InvalidArguments, TooLarge
from aenv.schema.bundle import digest_of
from aenv.schema.trajectories import MAX_EPISODE_BYTES, MAX_EVENT_BYTES

PART_BYTES = 1 << 20
"""Bytes of events, before compression, from which a part is complete."""
CHUNK = 1 << 20
LEVEL = 4
GZIP = 31


class StoredPart(BaseModel):
    """Place of some events of an episode."""

    digest: str
    first: int
    """Number of its first event."""
    count: int


@dataclass(frozen=True, slots=True)
class EpisodePart:
    """A compressed part of an episode."""

    place: StoredPart
    data: bytes


class PartSplitter:
    """Cuts the lines of an episode into parts."""

    def __init__(self, owner: str, episode: str, upload: str) -> None:
        self._head = to_json({"owner": owner, "episode": episode, "upload": upload}) + b"\n"
        self._lines: list[bytes] = []
        self._held = 0
        self._first = 0
        self._hash = hashlib.sha256()
        self.events = 0
        self.size = 0
        """Bytes of all events so far."""

    @property
    def digest(self) -> str:
        """Digest of all events so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def add(self, line: bytes) -> EpisodePart | None:
        """Add an event, without its newline; return a part if one is complete.

        Raises:
            TooLarge: the episode is too large.
        """
        self._lines.append(line + b"\n")
        self._hash.update(self._lines[-1])
        self._held += len(self._lines[-1])
        self.size += len(self._lines[-1])
        self.events += 1
        if self.size > MAX_EPISODE_BYTES:
            raise TooLarge(f"the events of an episode have at most {MAX_EPISODE_BYTES >> 20} MiB")
        return self.rest() if self._held >= PART_BYTES else None

    def rest(self) -> EpisodePart | None:
        """Return the last part, if events are left."""
        if not self._lines:
            return None
        packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
        data = packer.compress(self._head + b"".join(self._lines)) + packer.flush()
        place = StoredPart(digest=digest_of(data), first=self._first, count=len(self._lines))
        self._first, self._lines, self._held = self.events, [], 0
        return EpisodePart(place, data)


def lines_of_part(data: bytes) -> list[bytes]:
    """Return the events of a part, as JSON."""
    return zlib.decompress(data, GZIP).split(b"\n")[1:-1]


def events_of_part(data: bytes, start: int, stop: int) -> list[tuple[dict[str, object], int]]:
    """Return some of the events of a part, each with the length of its JSON."""
    return [(from_json(line), len(line)) for line in lines_of_part(data)[start:stop]]


class LineReader:
    """Yields the lines of a body that arrives in pieces, compressed or not."""

    def __init__(self, *, compressed: bool) -> None:
        self._unpacker = zlib.decompressobj(GZIP) if compressed else None
        self._rest: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete with these bytes.

        Raises:
            InvalidArguments: the bytes are not gzip.
            TooLarge: a line is too long.
        """
        for chunk in self._unpacked(data):
            first, *others = chunk.split(b"\n")
            self._hold(first)
            for each in others:
                yield b"".join(self._rest)
                self._rest, self._held = [], 0
                self._hold(each)

    def end(self) -> None:
        """Check that the body is complete.

        Raises:
            InvalidArguments: it is cut off.
        """
        if self._held or (self._unpacker is not None and not self._unpacker.eof):
            raise InvalidArguments("the events are cut off: the last line does not end")

    def _hold(self, data: bytes) -> None:
        self._rest.append(data)
        self._held += len(data)
        if self._held > MAX_EVENT_BYTES:
            raise TooLarge(f"an event has at most {MAX_EVENT_BYTES >> 20} MiB")

    def _unpacked(self, data: bytes) -> Iterator[bytes]:
        if self._unpacker is None:
            yield data
            return
        try:
            while data:
                if self._unpacker.eof:
                    raise InvalidArguments("there are bytes after the end of the compressed events")
                yield self._unpacker.decompress(data, CHUNK)
                data = self._unpacker.unconsumed_tail or self._unpacker.unused_data
        except zlib.error:
            raise InvalidArguments("the events are not compressed with gzip, or damaged") from None
