"""The local store of trajectories: a folder with an index and compressed segments.

Any number of processes may record into one store and read it at the same time. An episode whose end was recorded
survives the death of the process and of the machine; an episode whose process died is listed as unfinished, with all
events up to then, and counts in no statistics.
"""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from aenv._version import __version__
from aenv.errors import NotFound
from aenv.storage.episode_index import RUNNING, EpisodeFilter, EpisodeIndex, EpisodeRow
from aenv.trajectory import rows
from aenv.trajectory.appender import SegmentAppender
from aenv.trajectory.events import EpisodeKey, EpisodeSummary, Event, RunRecord, new_id
from aenv.trajectory.folder import StoreFolder, full_disk_as_error
from aenv.trajectory.pruning import chosen, remove
from aenv.trajectory.reader import EpisodeReader, PrunedEpisodes
from aenv.trajectory.recorder import EpisodeRecorder
from aenv.trajectory.recovery import recover
from aenv.trajectory.redaction import Redactor, secrets_of_process
from aenv.trajectory.segments import CHUNK, lines_of, read_chunks
from aenv.trajectory.writer import StoreWriter


def default_folder() -> Path:
    """Return the user's store of trajectories, below the user's data folder."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "aenv" / "trajectories"


class TrajectoryStore(EpisodeReader):
    """A store of trajectories in a folder. Open it with `TrajectoryStore.open`.

    Example:
        ```python
        with TrajectoryStore.open() as store:
            for episode in store.episodes(run="run-1"):
                print(episode.id, episode.outcome, episode.reward)
        ```
    """

    def __init__(self, folder: StoreFolder, index: EpisodeIndex, redactor: Redactor) -> None:
        self._folder = folder
        self._index = index
        self._redactor = redactor
        self._writer: StoreWriter | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    @classmethod
    def open(cls, path: Path | None = None, *, secrets: Iterable[str] = (), redact: bool = True) -> TrajectoryStore:
        """Open the store in a folder, created if need be, and recover what dead processes left there.

        Args:
            path: The folder; by default ``aenv/trajectories`` in the user's data folder.
            secrets: Values that must not be stored, in addition to those that are recognised.
            redact: False to store events exactly as they are given.
        """
        folder = StoreFolder((path or default_folder()).expanduser().absolute())
        folder.create()
        index = EpisodeIndex(folder.index)
        appender = SegmentAppender(folder, index)
        try:
            recover(folder, index, appender)
        finally:
            appender.close()
        redactor = Redactor([*secrets, *secrets_of_process()]) if redact else _Nothing()
        return cls(folder, index, redactor)

    @property
    def path(self) -> Path:
        """Return the folder of the store."""
        return self._folder.root

    @property
    def place(self) -> str:
        """Return the folder of the store, as text."""
        return str(self.path)

    def close(self) -> None:
        """Commit what is queued and release the locks. Episodes of this store without an end become unfinished."""
        with self._lock:
            writer, self._writer = self._writer, None
        if self._process == os.getpid():
            if writer is not None:
                writer.close()
            self._index.close()

    # --- write

    def begin_run(self, run: RunRecord) -> RunRecord:
        """Store a run and return it; if there is one of that id, return that one, unchanged."""
        return rows.run_record(self._index.add_run(rows.run_row(run)))

    def record(
        self,
        key: EpisodeKey,
        begin: Mapping[str, Any] | None = None,
        *,
        secrets: Iterable[str] = (),
        episode_id: str | None = None,
    ) -> EpisodeRecorder:
        """Begin an episode.

        Args:
            key: What it is an attempt of. A run that does not exist is created.
            begin: Fields of the event ``begin``: environment, agent, task, seed, model, sampling, parents, labels.
            secrets: Values that must not be stored with this episode.
            episode_id: Id of the episode, if it must have a given one.

        Raises:
            StorageFull: there is no space; nothing was begun.
        """
        fields = dict(begin or {})
        task = fields.get("task")
        fields["task"] = {**(task if isinstance(task, Mapping) else {}), "id": key.task}
        fields["versions"] = {"aenv": __version__, "python": platform.python_version(), **fields.get("versions", {})}
        head = {
            "episode": episode_id or new_id(),
            "run": key.run,
            "sample": key.sample,
            "attempt": key.attempt,
        }
        return EpisodeRecorder(self._writing(), {**head, **fields, **head}, self._redactor.plus(secrets))

    def _writing(self) -> StoreWriter:
        with self._lock:
            if self._process != os.getpid():  # a forked child writes for itself
                self._process = os.getpid()
                self._index.forget_connections()
                self._writer = None
            if self._writer is None:
                with full_disk_as_error(self.path):
                    self._writer = StoreWriter(self._folder, self._index)
            return self._writer

    # --- read

    def runs(self, *, after: str | None = None, limit: int = 100) -> list[RunRecord]:
        """Return runs, newest first; ``after`` is the last id of the page before."""
        return [rows.run_record(row) for row in self._index.runs(after, limit)]

    def run(self, id: str) -> RunRecord:
        """Return one run.

        Raises:
            NotFound: there is none of that id.
        """
        row = self._index.run(id)
        if row is None:
            raise NotFound(f"no such run: {id}", details={"hint": "List the runs: aenv trajectory list --runs"})
        return rows.run_record(row)

    def episodes(
        self,
        run: str | None = None,
        task: str | None = None,
        outcome: str | None = None,
        *,
        state: str | None = None,
        final: bool | None = None,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[EpisodeSummary]:
        """Return a page of episodes in the order of their beginning; ``after`` is the last id of the page before."""
        self._settle()
        where = EpisodeFilter(run, task, outcome, state, final)
        found = self._index.page(where, after=after, limit=limit, newest_first=newest_first)
        return [rows.summary(row) for row in found]

    def episode(self, id: str) -> EpisodeSummary:
        """Return one episode by its id or by an unambiguous beginning of it.

        Raises:
            NotFound: there is none, or more than one.
        """
        return rows.summary(self._row(id))

    def counts(self, run: str | None = None, task: str | None = None) -> dict[tuple[str, str | None], int]:
        """Return the number of episodes by state and outcome."""
        self._settle()
        return self._index.counts(EpisodeFilter(run, task))

    def counts_of(self, run: RunRecord) -> dict[str, int]:
        """Return the number of a run's episodes by outcome, or by state where they have none."""
        found = self.counts(run.id)
        return {outcome or state: count for (state, outcome), count in found.items()}

    def finished(self, run: str) -> set[tuple[str, int]]:
        """Return task and sample of every final episode of a run: what resuming the run must not repeat."""
        return self._index.final_samples(run)

    def events(self, id: str, start: int = 0, limit: int | None = None) -> Iterator[Event]:
        """Yield the events of an episode, of a running one those recorded so far.

        Raises:
            NotFound: there is no such episode.
        """
        stop = None if limit is None else start + limit
        for line in islice(self.lines(id), start, stop):
            yield json.loads(line)

    def lines(self, id: str) -> Iterator[bytes]:
        """Yield the events of an episode as they are stored: JSON, without the newlines.

        Raises:
            NotFound: there is no such episode.
        """
        return lines_of(self._content(self._row(id)))

    def prune(
        self,
        run: str | None = None,
        task: str | None = None,
        outcome: str | None = None,
        *,
        before: float | None = None,
        dry_run: bool = False,
    ) -> PrunedEpisodes:
        """Remove episodes that are not running, and give their space back.

        Args:
            run: Only those of this run.
            task: Only those of this task.
            outcome: Only those with this outcome.
            before: Only those that began before this time, in seconds since 1970.
            dry_run: Only count them.
        """
        self._settle()
        where = EpisodeFilter(run, task, outcome)
        if not dry_run:
            return remove(self._folder, self._index, where, before)
        count = size = 0
        for row in chosen(self._index, where, before):
            count, size = count + 1, size + (row.length or 0)
        return PrunedEpisodes(count, size)

    def _row(self, id: str) -> EpisodeRow:
        self._settle()
        row = self._index.episode(id)
        if row is None:
            found = self._index.with_prefix(id) if id else []
            if len(found) == 1:
                return self._row(found[0])
            why = "is ambiguous" if found else "does not exist"
            raise NotFound(f"episode {id} {why}", details={"hint": "List episodes: aenv trajectory list"})
        return row

    def _settle(self) -> None:
        """Let this store's own episodes be seen: their beginnings are indexed in groups, a moment later."""
        writer = self._writer
        if writer is not None and self._process == os.getpid():
            writer.settle()

    def _content(self, row: EpisodeRow) -> Iterator[bytes]:
        """Yield the bytes of an episode's events, wherever they are now: an episode may move while it is looked up."""
        for _ in range(10):
            if row.state == RUNNING and row.writer is not None:
                path = self._folder.live(row.writer, row.id)
            elif row.segment is not None:
                path = self._folder.segment(row.segment)
            else:
                return
            try:
                file = path.open("rb")
            except FileNotFoundError:
                row = self._row(row.id)
                continue
            with file:
                if row.segment is None:
                    while chunk := file.read(CHUNK):
                        yield chunk
                else:
                    assert row.place is not None
                    assert row.length is not None
                    yield from read_chunks(file.fileno(), row.place, row.length)
            return
        raise NotFound(f"the events of episode {row.id} are gone")


class _Nothing(Redactor):
    """Redacts nothing."""

    def finds(self, line: str) -> bool:
        return False

    def plus(self, values: Iterable[str]) -> Redactor:
        return self
