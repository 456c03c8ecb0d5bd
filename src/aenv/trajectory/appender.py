"""Append episodes to a segment that this process has locked, in batches that are synced once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aenv.storage.episode_index import EpisodeIndex, EpisodeRow
from aenv.trajectory.folder import StoreFolder, full_disk_as_error, try_lock
from aenv.trajectory.recovery import recover_tail
from aenv.trajectory.segments import sync_folder, write_member

SEGMENT_BYTES = 64 << 20
"""Length from which a segment gets no further batch."""


class SegmentAppender:
    """The segment that this process appends to. Not for use by two threads at once."""

    def __init__(self, folder: StoreFolder, index: EpisodeIndex) -> None:
        self._folder = folder
        self._index = index
        self._descriptor = -1
        self._number = 0
        self._end = 0

    def commit(self, ended: Sequence[tuple[EpisodeRow, Path]], others: Sequence[EpisodeRow] = ()) -> None:
        """Store episodes with their events, durably, and further rows without events. All or nothing.

        Raises:
            StorageFull: there is no space; nothing was stored.
        """
        if not ended:
            self._index.put(others)
            return
        with full_disk_as_error(self._folder.root):
            self._claim()
            rows, end = [], self._end
            try:
                for row, path in ended:
                    with path.open("rb") as source:
                        length = write_member(self._descriptor, end, source)
                    rows.append(replace(row, segment=self._number, place=end, length=length))
                    end += length
                os.fdatasync(self._descriptor)
                self._index.put([*others, *rows], segment=self._number, end=end)
            except BaseException:
                os.ftruncate(self._descriptor, self._end)
                raise
            self._end = end

    def close(self) -> None:
        """Release the segment."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _claim(self) -> None:
        if self._descriptor >= 0 and self._end < SEGMENT_BYTES:
            return
        self.close()
        for number, _ in self._index.segments(below=SEGMENT_BYTES, limit=8):
            try:
                descriptor = os.open(self._folder.segment(number), os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            if try_lock(descriptor):
                end = recover_tail(self._index, number, descriptor)
                if end is not None and end < SEGMENT_BYTES:
                    self._descriptor, self._number, self._end = descriptor, number, end
                    return
            os.close(descriptor)
        number = self._index.add_segment()
        path = self._folder.segment(number)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_lock(descriptor):  # another process claimed the new segment first
            os.close(descriptor)
            self._claim()
            return
        sync_folder(path.parent)
        self._descriptor, self._number, self._end = descriptor, number, 0
