"""Take over what dead processes left: complete members that are not indexed, and episodes that were being recorded.

Only files whose owner is dead are touched: each has a lock that the kernel released when its owner died.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aenv.storage.episode_index import ENDED, UNFINISHED, EpisodeIndex, EpisodeRow
from aenv.trajectory import rows
from aenv.trajectory.folder import StoreFolder, dead_writer, try_lock
from aenv.trajectory.segments import complete, lines_of, member_length, read_chunks

if TYPE_CHECKING:
    from aenv.trajectory.appender import SegmentAppender

BATCH = 500


def recover(folder: StoreFolder, index: EpisodeIndex, appender: SegmentAppender) -> None:
    """Recover segments and episodes of writers that died. An index that was lost is built again."""
    files = folder.segment_files()
    if index.fresh:
        for number in files:
            index.restore_segment(number)
    for number, end in index.segments():
        if number in files and files[number].stat().st_size > end:
            _recover_segment(index, number, files[number])
    for lock in sorted(folder.writers.glob("*.lock")):
        recover_writer(folder, index, appender, lock.stem)


def recover_writer(folder: StoreFolder, index: EpisodeIndex, appender: SegmentAppender, name: str) -> None:
    """Store the episodes that a dead writer was recording, without their torn tails, and remove its files."""
    with dead_writer(folder, name) as dead:
        if not dead:
            return
        home = folder.writers / name
        batch: list[tuple[EpisodeRow, Path]] = []
        for path in sorted(home.glob("*.jsonl")):
            row = _left_behind(index, path)
            if row is not None:
                batch.append((row, path))
            if len(batch) == BATCH:
                appender.commit(batch)
                batch = []
        appender.commit(batch)
        lost = [replace(row, state=UNFINISHED, writer=None) for row in index.running(name)]
        if lost:
            index.put(lost)
        for path in home.glob("*.jsonl"):
            path.unlink()
        with suppress(FileNotFoundError):
            home.rmdir()
        folder.lock(name).unlink(missing_ok=True)


def recover_tail(index: EpisodeIndex, number: int, descriptor: int) -> int | None:
    """Index complete members after the indexed end of a locked segment, cut off the rest, and return the new end.

    Returns None if the segment was removed from the index.
    """
    end = index.segment_end(number)
    if end is None:
        return None
    found: list[EpisodeRow] = []
    while (length := member_length(descriptor, end)) and complete(descriptor, end, length):
        row = _row_of(lines_of(read_chunks(descriptor, end, length)))
        if row is not None:
            found.append(replace(row, segment=number, place=end, length=length))
        end += length
        if len(found) == BATCH:
            index.put(found, segment=number, end=end)
            found = []
    index.put(found, segment=number, end=end)
    if os.fstat(descriptor).st_size > end:
        os.ftruncate(descriptor, end)
    return end


def _recover_segment(index: EpisodeIndex, number: int, path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if try_lock(descriptor):
            recover_tail(index, number, descriptor)
    finally:
        os.close(descriptor)


def _left_behind(index: EpisodeIndex, path: Path) -> EpisodeRow | None:
    """Return the row of an episode that was being recorded, and cut its torn tail; None if nothing must be stored."""
    known = index.episode(path.stem)
    if known is not None and known.state == ENDED:
        return None
    with path.open("r+b") as file:
        _cut(file.fileno())
        return _row_of(line.rstrip(b"\n") for line in file)


def _cut(descriptor: int) -> None:
    """Truncate a file after its last newline."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - 65536)
        at = os.pread(descriptor, end - start, start).rfind(b"\n")
        if at >= 0:
            os.ftruncate(descriptor, start + at + 1)
            return
        end = start
    os.ftruncate(descriptor, 0)


def _row_of(lines: Iterator[bytes]) -> EpisodeRow | None:
    first = last = b""
    count = 0
    for line in lines:
        first, last, count = first or line, line, count + 1
    return rows.closed(json.loads(first), json.loads(last), count) if first else None
