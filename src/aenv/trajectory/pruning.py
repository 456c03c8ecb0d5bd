"""Remove episodes, and give the space of segments back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from aenv.storage.episode_index import RUNNING, EpisodeFilter, EpisodeIndex, EpisodeRow
from aenv.trajectory.folder import StoreFolder, full_disk_as_error, try_lock
from aenv.trajectory.reader import PrunedEpisodes
from aenv.trajectory.recovery import recover_tail
from aenv.trajectory.segments import copy_member, sync_folder

BATCH = 500
KEPT_SHARE = 0.5
"""A segment of which less than this is still in use is written anew without the rest."""


def chosen(index: EpisodeIndex, where: EpisodeFilter, before: float | None) -> Iterator[EpisodeRow]:
    """Yield the episodes to remove: those that match, began before a time, and are not running."""
    after = None
    while page := index.page(where, after=after, limit=BATCH):
        for row in page:
            if row.state != RUNNING and (before is None or row.began < before):
                yield row
        after = page[-1].id


def remove(folder: StoreFolder, index: EpisodeIndex, where: EpisodeFilter, before: float | None) -> PrunedEpisodes:
    """Remove episodes and runs that have none left, and compact segments that no other process appends to."""
    count = size = 0
    while True:
        rows = [row for row, _ in zip(chosen(index, where, before), range(BATCH), strict=False)]
        if not rows:
            break
        index.remove([row.id for row in rows])
        for run in {row.run for row in rows}:
            index.remove_run(run)
        count, size = count + len(rows), size + sum(row.length or 0 for row in rows)
    compact(folder, index)
    return PrunedEpisodes(count, size)


def compact(folder: StoreFolder, index: EpisodeIndex) -> None:
    """Remove segments without episodes, and write segments anew that have few."""
    files = folder.segment_files()
    known = {number for number, _ in index.segments()}
    for number, path in files.items():
        if number not in known and number < max(known, default=0):  # left by a crash between the last two steps
            path.unlink(missing_ok=True)
    for number, end in index.segments():
        if index.used_bytes(number) >= end * KEPT_SHARE and end:
            continue
        try:
            descriptor = os.open(folder.segment(number), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if try_lock(descriptor) and recover_tail(index, number, descriptor) is not None:
                _move(folder, index, number, descriptor)
                index.remove_segment(number)
                folder.segment(number).unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _move(folder: StoreFolder, index: EpisodeIndex, number: int, source: int) -> None:
    """Copy the episodes of a segment to a new one."""
    rows = index.in_segment(number)
    if not rows:
        return
    new = index.add_segment()
    path = folder.segment(new)
    with full_disk_as_error(path):
        target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try_lock(target)
            moved, end = [], 0
            for row in rows:
                assert row.place is not None
                assert row.length is not None
                copy_member(source, row.place, row.length, target, end)
                moved.append(replace(row, segment=new, place=end))
                end += row.length
            os.fsync(target)
            sync_folder(path.parent)
            index.put(moved, segment=new, end=end)
        finally:
            os.close(target)
