"""Index of recorded episodes in one SQLite file: who did what, with which result, and where its events are stored.

The events themselves are in segment files (`aenv.trajectory.segments`); this table finds them. Rows are numbered in the
order in which episodes began, and pages are read by number, so page 10,000 costs as much as page 1. Tasks and runs are
interned, which keeps the indexes small: one million episodes take about 300 MB.

A commit is not synced to disk: the segments are, and whatever the index lost in a power cut is read from them again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aenv.errors import AEnvError, ConfigError, StorageFull, Unavailable
from aenv.storage.sqlite_connections import SqliteConnections

FORMAT = 1
RUNNING, UNFINISHED, ENDED = "running", "unfinished", "ended"

_TABLES = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, request TEXT NOT NULL,
    labels TEXT NOT NULL, created REAL NOT NULL
);
CREATE TABLE tasks (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE segments (number INTEGER PRIMARY KEY AUTOINCREMENT, bytes INTEGER NOT NULL);
CREATE TABLE episodes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, run INTEGER NOT NULL, task INTEGER NOT NULL,
    sample INTEGER NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL, outcome TEXT, final INTEGER NOT NULL,
    reward REAL, began REAL NOT NULL, seconds REAL, steps INTEGER, input_tokens INTEGER, output_tokens INTEGER,
    cost REAL, events INTEGER, writer TEXT, segment INTEGER, place INTEGER, length INTEGER, about TEXT NOT NULL
);
CREATE INDEX by_run ON episodes (run);
CREATE INDEX by_run_task ON episodes (run, task);
CREATE INDEX by_run_outcome ON episodes (run, outcome, state);
CREATE INDEX by_task ON episodes (task);
CREATE INDEX by_outcome ON episodes (outcome);
CREATE INDEX by_segment ON episodes (segment);
CREATE INDEX running_episodes ON episodes (writer) WHERE state = 'running';
CREATE UNIQUE INDEX final_episodes ON episodes (run, task, sample) WHERE final = 1;
"""

_COLUMNS = (
    "e.number, e.id, r.id, t.name, e.sample, e.attempt, e.state, e.outcome, e.final, e.reward, e.began, e.seconds,"
    " e.steps, e.input_tokens, e.output_tokens, e.cost, e.events, e.writer, e.segment, e.place, e.length, e.about"
)
_JOINS = "FROM episodes e JOIN runs r ON r.number = e.run JOIN tasks t ON t.number = e.task"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A stored run. ``request`` and ``labels`` are JSON text."""

    id: str
    title: str
    request: str
    labels: str
    created: float


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """A stored episode. ``about`` is JSON text with what is shown but not searched."""

    id: str
    run: str
    task: str
    sample: int
    attempt: int
    state: str
    """``running``, ``unfinished`` (its writer died) or ``ended``."""
    began: float
    about: str = "{}"
    outcome: str | None = None
    final: bool = False
    """True if this episode is the result of its sample: at most one is."""
    reward: float | None = None
    seconds: float | None = None
    steps: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    events: int | None = None
    writer: str | None = None
    """Name of the writer that holds the events of a running episode."""
    segment: int | None = None
    place: int | None = None
    """Offset of the events in the segment."""
    length: int | None = None
    number: int = 0
    """Position in the order of beginning; assigned by the index."""


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Conditions on episodes; None accepts all."""

    run: str | None = None
    task: str | None = None
    outcome: str | None = None
    state: str | None = None
    final: bool | None = None


_NO_SPACE = (
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE,
)  # fmt: skip
"""Errors of SQLite where its files cannot grow."""


class EpisodeIndex:
    """The index in a file. Any number of threads and processes may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connections = SqliteConnections(path, "NORMAL", self._as_error)
        self.fresh = self._connections.create_tables(_TABLES, FORMAT)
        """True if the file was created by this call."""

    def close(self) -> None:
        """Close the connections. The index may be used again afterwards."""
        self._connections.close()

    def forget_connections(self) -> None:
        """Drop the connections without closing them: in a forked process they belong to the parent."""
        self._connections.forget()

    def _as_error(self, error: sqlite3.Error) -> AEnvError:
        if getattr(error, "sqlite_errorcode", None) in _NO_SPACE:
            return StorageFull(f"no space left for {self.path}: {error}")
        if isinstance(error, sqlite3.OperationalError):
            return Unavailable(f"{self.path} is unavailable: {error}")
        return ConfigError(f"{self.path} is not an index of trajectories: {error}")

    # --- runs

    def add_run(self, row: RunRow) -> RunRow:
        """Store a run unless one of that id exists, and return the stored one."""
        with self._connections.use() as db:
            db.execute(
                "INSERT OR IGNORE INTO runs (id, title, request, labels, created) VALUES (?, ?, ?, ?, ?)",
                (row.id, row.title, row.request, row.labels, row.created),
            )
            found = db.execute("SELECT id, title, request, labels, created FROM runs WHERE id = ?", (row.id,))
            return RunRow(*found.fetchone())

    def runs(self, after: str | None = None, limit: int = 100) -> list[RunRow]:
        """Return runs, newest first; ``after`` is the last id of the page before."""
        with self._connections.use() as db:
            rows = db.execute(
                "SELECT id, title, request, labels, created FROM runs"
                " WHERE :after IS NULL OR number < (SELECT number FROM runs WHERE id = :after)"
                " ORDER BY number DESC LIMIT :limit",
                {"after": after, "limit": limit},
            )
            return [RunRow(*row) for row in rows]

    def run(self, id: str) -> RunRow | None:
        """Return one run."""
        with self._connections.use() as db:
            row = db.execute("SELECT id, title, request, labels, created FROM runs WHERE id = ?", (id,)).fetchone()
            return RunRow(*row) if row else None

    # --- episodes

    def episode(self, id: str) -> EpisodeRow | None:
        """Return one episode."""
        with self._connections.use() as db:
            row = db.execute(f"SELECT {_COLUMNS} {_JOINS} WHERE e.id = ?", (id,)).fetchone()
            return _row(row) if row else None

    def with_prefix(self, prefix: str, limit: int = 2) -> list[str]:
        """Return ids that begin with ``prefix``."""
        with self._connections.use() as db:
            found = db.execute(
                "SELECT id FROM episodes WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
                (prefix, prefix + "\U0010ffff", limit),
            )
            return [id for (id,) in found]

    def page(
        self, where: EpisodeFilter, *, after: str | None = None, limit: int = 100, newest_first: bool = False
    ) -> list[EpisodeRow]:
        """Return episodes in the order of their beginning; ``after`` is the last id of the page before."""
        with self._connections.use() as db:
            conditions, values = _conditions(db, where)
            if conditions is None:
                return []
            if after is not None:
                conditions.append(f"e.number {'<' if newest_first else '>'} (SELECT number FROM episodes WHERE id = ?)")
                values.append(after)
            text = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            order = "DESC" if newest_first else "ASC"
            rows = db.execute(f"SELECT {_COLUMNS} {_JOINS}{text} ORDER BY e.number {order} LIMIT ?", (*values, limit))
            return [_row(row) for row in rows]

    def counts(self, where: EpisodeFilter) -> dict[tuple[str, str | None], int]:
        """Return the number of episodes by state and outcome."""
        with self._connections.use() as db:
            conditions, values = _conditions(db, where)
            if conditions is None:
                return {}
            text = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            rows = db.execute(f"SELECT state, outcome, count(*) FROM episodes e{text} GROUP BY state, outcome", values)
            return {(state, outcome): count for state, outcome, count in rows}

    def running(self, writer: str) -> list[EpisodeRow]:
        """Return the running episodes of a writer."""
        with self._connections.use() as db:
            rows = db.execute(f"SELECT {_COLUMNS} {_JOINS} WHERE e.state = 'running' AND e.writer = ?", (writer,))
            return [_row(row) for row in rows]

    def final_samples(self, run: str) -> set[tuple[str, int]]:
        """Return task and sample of every final episode of a run."""
        with self._connections.use() as db:
            rows = db.execute(
                "SELECT t.name, e.sample FROM episodes e JOIN tasks t ON t.number = e.task"
                " WHERE e.final = 1 AND e.run = (SELECT number FROM runs WHERE id = ?)",
                (run,),
            )
            return {(task, sample) for task, sample in rows}

    def put(self, rows: Sequence[EpisodeRow], *, segment: int | None = None, end: int = 0) -> None:
        """Insert or replace episodes in one transaction, and set the indexed length of a segment.

        A second final episode of one sample is stored as not final.
        """
        with self._connections.use() as db:
            db.execute("BEGIN IMMEDIATE")
            runs: dict[str, int] = {}
            tasks: dict[str, int] = {}
            for row in rows:
                run = runs.get(row.run) or runs.setdefault(row.run, _run_number(db, row))
                task = tasks.get(row.task) or tasks.setdefault(row.task, _task_number(db, row.task))
                _put(db, row, run, task)
            if segment is not None:
                db.execute("UPDATE segments SET bytes = ? WHERE number = ?", (end, segment))
            db.execute("COMMIT")

    def remove(self, ids: Sequence[str]) -> None:
        """Remove episodes."""
        with self._connections.use() as db:
            db.execute("BEGIN IMMEDIATE")
            for id in ids:
                db.execute("DELETE FROM episodes WHERE id = ?", (id,))
            db.execute("COMMIT")

    def remove_run(self, id: str) -> None:
        """Remove a run without episodes."""
        with self._connections.use() as db:
            db.execute(
                "DELETE FROM runs WHERE id = ? AND NOT EXISTS (SELECT 1 FROM episodes WHERE run = runs.number)", (id,)
            )

    # --- segments

    def add_segment(self) -> int:
        """Return the number of a new segment."""
        with self._connections.use() as db:
            number = db.execute("INSERT INTO segments (bytes) VALUES (0)").lastrowid
            assert number is not None
            return number

    def restore_segment(self, number: int) -> None:
        """Add a segment whose file exists, when the index is built again."""
        with self._connections.use() as db:
            db.execute("INSERT OR IGNORE INTO segments (number, bytes) VALUES (?, 0)", (number,))

    def segments(self, below: int | None = None, limit: int = -1) -> list[tuple[int, int]]:
        """Return numbers and indexed lengths of segments, newest first; ``below`` limits the length."""
        with self._connections.use() as db:
            return db.execute(
                "SELECT number, bytes FROM segments WHERE :below IS NULL OR bytes < :below"
                " ORDER BY number DESC LIMIT :limit",
                {"below": below, "limit": limit},
            ).fetchall()

    def segment_end(self, number: int) -> int | None:
        """Return the indexed length of a segment; None if it was removed."""
        with self._connections.use() as db:
            row = db.execute("SELECT bytes FROM segments WHERE number = ?", (number,)).fetchone()
            return row[0] if row else None

    def used_bytes(self, segment: int) -> int:
        """Return how many bytes of a segment belong to indexed episodes."""
        with self._connections.use() as db:
            row = db.execute("SELECT coalesce(sum(length), 0) FROM episodes WHERE segment = ?", (segment,)).fetchone()
            used: int = row[0]
            return used

    def in_segment(self, segment: int) -> list[EpisodeRow]:
        """Return the episodes in a segment, by their place."""
        with self._connections.use() as db:
            rows = db.execute(f"SELECT {_COLUMNS} {_JOINS} WHERE e.segment = ? ORDER BY e.place", (segment,))
            return [_row(row) for row in rows]

    def remove_segment(self, number: int) -> None:
        """Forget a segment that holds no indexed episode."""
        with self._connections.use() as db:
            db.execute("DELETE FROM segments WHERE number = ?", (number,))


def _conditions(db: sqlite3.Connection, where: EpisodeFilter) -> tuple[list[str] | None, list[object]]:
    """Return conditions with their values; None in place of conditions that nothing can meet."""
    conditions: list[str] = []
    values: list[object] = []
    for column, table, key, value in (("run", "runs", "id", where.run), ("task", "tasks", "name", where.task)):
        if value is not None:
            row = db.execute(f"SELECT number FROM {table} WHERE {key} = ?", (value,)).fetchone()
            if row is None:
                return None, []
            conditions.append(f"e.{column} = ?")
            values.append(row[0])
    for column, wanted in (("outcome", where.outcome), ("state", where.state), ("final", where.final)):
        if wanted is not None:
            conditions.append(f"e.{column} = ?")
            values.append(wanted)
    return conditions, values


def _run_number(db: sqlite3.Connection, row: EpisodeRow) -> int:
    found = db.execute("SELECT number FROM runs WHERE id = ?", (row.run,)).fetchone()
    if found is None:
        number = db.execute(
            "INSERT INTO runs (id, title, request, labels, created) VALUES (?, '', '{}', '{}', ?)",
            (row.run, row.began),
        ).lastrowid
        assert number is not None
        return number
    known: int = found[0]
    return known


def _task_number(db: sqlite3.Connection, name: str) -> int:
    found = db.execute("SELECT number FROM tasks WHERE name = ?", (name,)).fetchone()
    if found is None:
        number = db.execute("INSERT INTO tasks (name) VALUES (?)", (name,)).lastrowid
        assert number is not None
        return number
    known: int = found[0]
    return known


_VALUES = (
    "run, task, sample, attempt, state, outcome, final, reward, began, seconds, steps, input_tokens, output_tokens,"
    " cost, events, writer, segment, place, length, about"
)
_UPSERT = (
    f"INSERT INTO episodes (id, {_VALUES}) VALUES ({', '.join('?' * 21)}) ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _VALUES.split(", "))
)


def _put(db: sqlite3.Connection, row: EpisodeRow, run: int, task: int) -> None:
    final = row.final
    if final:
        other = db.execute(
            "SELECT 1 FROM episodes WHERE run = ? AND task = ? AND sample = ? AND final = 1 AND id != ?",
            (run, task, row.sample, row.id),
        ).fetchone()
        final = other is None
    db.execute(
        _UPSERT,
        (
            row.id, run, task, row.sample, row.attempt, row.state, row.outcome, final, row.reward, row.began,
            row.seconds, row.steps, row.input_tokens, row.output_tokens, row.cost, row.events, row.writer, row.segment,
            row.place, row.length, row.about,
        ),
    )  # fmt: skip


def _row(values: tuple[object, ...]) -> EpisodeRow:
    names = (
        "number", "id", "run", "task", "sample", "attempt", "state", "outcome", "final", "reward", "began", "seconds",
        "steps", "input_tokens", "output_tokens", "cost", "events", "writer", "segment", "place", "length", "about",
    )  # fmt: skip
    fields = dict(zip(names, values, strict=True))
    fields["final"] = bool(fields["final"])
    return EpisodeRow(**fields)  # type: ignore[arg-type]
