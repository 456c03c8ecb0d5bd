"""The writing side of a store in one process: a lock, a thread that commits episodes in groups, their live files.

One sync to disk serves all episodes that ended while the one before was running, so a thousand episodes that end
together cost a few syncs and not a thousand.
"""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aenv.errors import AEnvError, UsageError
from aenv.storage.episode_index import EpisodeIndex, EpisodeRow
from aenv.trajectory.appender import SegmentAppender
from aenv.trajectory.events import new_id
from aenv.trajectory.folder import StoreFolder, claim_writer
from aenv.trajectory.recovery import recover_writer

GROUP = 256
"""Most episodes of one commit."""


@dataclass(frozen=True, slots=True)
class _Job:
    row: EpisodeRow | None
    """None to wait for those before it."""
    path: Path | None = None
    """Events of an ended episode; None for one that begins."""
    done: Future[None] | None = None


class StoreWriter:
    """Commits the episodes of one process."""

    def __init__(self, folder: StoreFolder, index: EpisodeIndex) -> None:
        self.name = new_id("w")
        self._folder = folder
        self._index = index
        self._appender = SegmentAppender(folder, index)
        self._lock = claim_writer(folder, self.name)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._begun: dict[str, EpisodeRow] = {}
        """Rows of episodes that began and could not be indexed yet."""
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="aenv-trajectory", daemon=True)
        self._thread.start()

    def live(self, episode: str) -> Path:
        """Return the path of an episode's events while it is being recorded."""
        return self._folder.live(self.name, episode)

    def begin(self, row: EpisodeRow) -> None:
        """Index a running episode soon."""
        self._jobs.put(_Job(row))

    def end(self, row: EpisodeRow) -> Future[None]:
        """Store an ended episode; the future is done when it is durable."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # who stops waiting cannot cancel it: the episode is stored all the same
        if self._closed:
            raise UsageError("the store is closed")
        self._jobs.put(_Job(row, self.live(row.id), done))
        return done

    def settle(self) -> None:
        """Wait until what is queued was committed, or failed to be."""
        if not self._closed:
            done: Future[None] = Future()
            self._jobs.put(_Job(None, done=done))
            with suppress(AEnvError, OSError):
                done.result()

    def close(self) -> None:
        """Commit what is queued. Episodes that have not ended become unfinished."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        self._thread.join()
        os.close(self._lock)
        try:
            recover_writer(self._folder, self._index, self._appender, self.name)
        finally:
            self._appender.close()

    # --- in the thread

    def _work(self) -> None:
        while True:
            jobs = self._next_group()
            self._commit([job for job in jobs if job is not None])
            if jobs[-1] is None:
                return

    def _next_group(self) -> list[_Job | None]:
        jobs = [self._jobs.get()]
        with suppress(queue.Empty):
            while jobs[-1] is not None and len(jobs) < GROUP:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _commit(self, jobs: list[_Job]) -> None:
        ended = [(job.row, job.path) for job in jobs if job.row is not None and job.path is not None]
        self._begun.update((job.row.id, job.row) for job in jobs if job.row is not None and job.path is None)
        over = {row.id for row, _ in ended}
        others = [row for id, row in self._begun.items() if id not in over]
        try:
            if ended or others:
                self._appender.commit(ended, others)
        except Exception as error:
            problem = error if isinstance(error, AEnvError | OSError) else AEnvError(f"cannot store episodes: {error}")
            for job in jobs:
                if job.done is not None:
                    job.done.set_exception(problem)
            return
        self._begun.clear()
        for job in jobs:
            if job.path is not None:
                job.path.unlink(missing_ok=True)
            if job.done is not None:
                job.done.set_result(None)
