"""Record store in one SQLite file: nothing to install or start, usable by any number of processes.

Write-ahead logging lets readers continue during a write. Every commit is synced to disk before it returns, so a crash
of the process or the machine loses no commit. The file must be on a local disk: network file systems do not implement
SQLite's locks reliably.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from aenv.errors import AEnvError, ConfigError, Unavailable
from aenv.storage.base import (
    ABSENT,
    ANY,
    SCAN_BUDGET,
    SEPARATOR,
    BlockingStore,
    Change,
    Delete,
    Page,
    Put,
    Query,
    Record,
    Stale,
    entries_of,
    pack,
    unpack,
)
from aenv.storage.sqlite_connections import SqliteConnections

FORMAT = 1
COUNT_LIMIT = 1000
"""Limit of counting an index's entries, to find the shortest of several indexes."""

_TABLES = """
CREATE TABLE IF NOT EXISTS records (
    space TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, revision INTEGER NOT NULL, expires REAL,
    entries TEXT NOT NULL, UNIQUE (space, key)
);
CREATE INDEX IF NOT EXISTS expiring ON records (expires) WHERE expires IS NOT NULL;
CREATE TABLE IF NOT EXISTS indexes (
    id INTEGER PRIMARY KEY, space TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (space, name)
);
CREATE TABLE IF NOT EXISTS entries (
    idx INTEGER NOT NULL, place TEXT NOT NULL, PRIMARY KEY (idx, place)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL);
INSERT OR IGNORE INTO counter VALUES (1, 0);
"""


class SqliteStore(BlockingStore):
    """Store in a file, whose folder is created if it does not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:{path}"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._connections = SqliteConnections(path, "FULL", self._as_error)
        self._connections.create_tables(_TABLES, FORMAT)

    async def close(self) -> None:
        self._connections.close()

    def _as_error(self, error: sqlite3.Error) -> AEnvError:
        if isinstance(error, sqlite3.OperationalError):
            return Unavailable(f"the store at {self.path} is unavailable: {error}")
        return ConfigError(f"{self.path} is not an aenv store: {error}")

    # --- read

    def _get_many(self, space: str, keys: Sequence[str]) -> list[Record | None]:
        with self._connections.use() as db:
            found = _fetch(db, space, keys)
        return [found.get(key) for key in keys]

    def _page(self, query: Query) -> Page:
        with self._connections.use() as db:
            db.execute("BEGIN")
            numbers = [_index_id(db, query.space, index) for index in query.indexes]
            if None in numbers:
                return Page()
            known = [number for number in numbers if number is not None]
            driver, *others = sorted(known, key=lambda number: _entry_count(db, number)) if len(known) > 1 else known
            places, following = _scan(db, query, driver, others)
            keys = [each.partition(SEPARATOR)[2] for each in places]
            found = _fetch(db, query.space, keys)
        return Page([found[key] for key in keys if key in found], following)

    def _dump(self) -> Iterator[list[Put]]:
        last = 0
        while True:
            with self._connections.use() as db:
                rows = db.execute(
                    "SELECT rowid, space, key, value, entries, expires FROM records WHERE rowid > ? ORDER BY rowid"
                    " LIMIT ?",
                    (last, self.CHUNK),
                ).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            yield [Put(space, key, value, unpack(packed), expires) for _, space, key, value, packed, expires in rows]

    # --- write

    def _commit(self, changes: Sequence[Change]) -> int:
        with self._connections.use() as db:
            db.execute("BEGIN IMMEDIATE")
            now = time.time()
            _delete_expired(db, now)
            for change in changes:
                if change.expect != ANY:
                    row = db.execute(
                        "SELECT revision FROM records WHERE space = ? AND key = ? AND (expires IS NULL OR expires > ?)",
                        (change.space, change.key, now),
                    ).fetchone()
                    if (row[0] if row else ABSENT) != change.expect:
                        raise Stale(change.space, change.key)
            db.execute("UPDATE counter SET revision = revision + 1")
            revision: int = db.execute("SELECT revision FROM counter").fetchone()[0]
            for change in changes:
                if isinstance(change, Put):
                    _put(db, change, revision)
                elif isinstance(change, Delete):
                    _remove(db, change.space, change.key)
            db.execute("COMMIT")
        return revision


def _put(db: sqlite3.Connection, put: Put, revision: int) -> None:
    row = db.execute("SELECT entries FROM records WHERE space = ? AND key = ?", (put.space, put.key)).fetchone()
    before = entries_of(Put(put.space, put.key, b"", unpack(row[0]))) if row else set()
    after = entries_of(put)
    _drop_entries(db, put.space, before - after)
    db.executemany(
        "INSERT OR IGNORE INTO entries VALUES (?, ?)",
        [(_ensure_index_id(db, put.space, index), where) for index, where in after - before],
    )
    db.execute(
        "INSERT INTO records (space, key, value, revision, expires, entries) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (space, key) DO UPDATE SET value = excluded.value, revision = excluded.revision,"
        " expires = excluded.expires, entries = excluded.entries",
        (put.space, put.key, put.value, revision, put.expires, pack(put.entries)),
    )


def _remove(db: sqlite3.Connection, space: str, key: str) -> None:
    row = db.execute("SELECT entries FROM records WHERE space = ? AND key = ?", (space, key)).fetchone()
    if row is not None:
        db.execute("DELETE FROM records WHERE space = ? AND key = ?", (space, key))
        _drop_entries(db, space, entries_of(Put(space, key, b"", unpack(row[0]))))


def _drop_entries(db: sqlite3.Connection, space: str, entries: set[tuple[str, str]]) -> None:
    db.executemany(
        "DELETE FROM entries WHERE idx = ? AND place = ?",
        [(_index_id(db, space, index), where) for index, where in entries],
    )


def _delete_expired(db: sqlite3.Connection, now: float) -> None:
    """Delete a few expired records with each commit, so that no separate cleanup is needed."""
    rows = db.execute("SELECT space, key FROM records WHERE expires <= ? LIMIT 20", (now,)).fetchall()
    for space, key in rows:
        _remove(db, space, key)


def _fetch(db: sqlite3.Connection, space: str, keys: Sequence[str]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for start in range(0, len(keys), 500):
        chunk = keys[start : start + 500]
        marks = ",".join("?" * len(chunk))
        rows = db.execute(
            f"SELECT key, value, revision FROM records WHERE space = ? AND key IN ({marks})"
            " AND (expires IS NULL OR expires > ?)",
            (space, *chunk, time.time()),
        )
        found.update((key, Record(key, value, revision)) for key, value, revision in rows)
    return found


def _scan(db: sqlite3.Connection, query: Query, driver: int, others: list[int]) -> tuple[list[str], str | None]:
    """Return positions of the driving index that are in all others too, and the cursor of the next page."""
    low, high = query.low, query.high or "\U0010ffff"
    above = ">="
    if query.after is not None and query.reverse:
        high = min(high, query.after)
    elif query.after is not None and query.after >= low:
        low, above = query.after, ">"
    tests = "".join(f" AND EXISTS (SELECT 1 FROM entries WHERE idx = {n} AND place = seen.place)" for n in others)
    budget = SCAN_BUDGET if others else query.limit
    rows = db.execute(
        f"SELECT place, 1{tests} FROM (SELECT place FROM entries WHERE idx = ? AND place {above} ? AND place < ?"
        f" ORDER BY place {'DESC' if query.reverse else 'ASC'} LIMIT ? OFFSET ?) AS seen",
        (driver, low, high, budget, query.offset),
    )
    places: list[str] = []
    last, seen = None, 0
    for where, fits in rows:
        last, seen = where, seen + 1
        if fits:
            places.append(where)
            if len(places) == query.limit:
                break
    return places, last if len(places) == query.limit or seen == budget else None


def _index_id(db: sqlite3.Connection, space: str, index: str) -> int | None:
    row = db.execute("SELECT id FROM indexes WHERE space = ? AND name = ?", (space, index)).fetchone()
    return row[0] if row else None


def _ensure_index_id(db: sqlite3.Connection, space: str, index: str) -> int:
    number = _index_id(db, space, index)
    if number is None:
        number = db.execute("INSERT INTO indexes (space, name) VALUES (?, ?)", (space, index)).lastrowid
    assert number is not None
    return number


def _entry_count(db: sqlite3.Connection, number: int) -> int:
    count: int = db.execute(
        f"SELECT count(*) FROM (SELECT 1 FROM entries WHERE idx = ? LIMIT {COUNT_LIMIT})", (number,)
    ).fetchone()[0]
    return count
