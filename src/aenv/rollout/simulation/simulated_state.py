"""State of a simulated world: entries of named collections, and the calls so far, in SQLite.

A model reads it with SQL, so that SQLite counts and adds, which models do wrongly. Its statements may be influenced by
what an agent wrote: they can only read these two tables, and are bounded in work and size.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

SCHEMA = """
CREATE TABLE state (collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (collection, key));
CREATE TABLE calls (number INTEGER PRIMARY KEY, tool TEXT NOT NULL, arguments TEXT NOT NULL, result TEXT NOT NULL);
"""
MOST_ROWS = 100
VALUE_BYTES = 100_000
WORK = 2_000
"""Thousands of steps of SQLite's machine that a statement may take."""
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


class SimulatedState:
    """The state of one episode."""

    def __init__(self, initial: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.executescript(SCHEMA)
        self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10 * VALUE_BYTES)
        self.version = 0
        """Number of changes so far."""
        for collection, entries in (initial or {}).items():
            for key, value in entries.items():
                self.put(collection, key, value)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a SELECT, at most `MOST_ROWS`.

        Raises:
            ValueError: the statement fails, takes too long, or does more than read.
        """
        with self._only_reading():
            try:
                found = self._database.execute(sql)
                names = [column[0] for column in found.description or ()]
                return [dict(zip(names, row, strict=True)) for row in found.fetchmany(MOST_ROWS)]
            except (sqlite3.Error, sqlite3.Warning) as error:
                raise ValueError(str(error)) from None

    @contextmanager
    def call(self) -> Iterator[None]:
        """Undo what the block changes, unless it calls `keep`."""
        self._database.execute("BEGIN")
        before = self.version
        try:
            yield
        finally:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
                self.version = before

    def keep(self) -> None:
        """Keep the changes of a call."""
        self._database.execute("COMMIT")

    def put(self, collection: str, key: str, value: Any) -> None:
        """Write an entry.

        Raises:
            ValueError: it is too large.
        """
        text = json.dumps(value, sort_keys=True)
        if len(text) > VALUE_BYTES:
            raise ValueError(f"the value of {collection}/{key} has {len(text)} bytes; at most {VALUE_BYTES}")
        self._database.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (collection, key, text))
        self.version += 1

    def remove(self, collection: str, key: str) -> None:
        """Remove an entry."""
        self._database.execute("DELETE FROM state WHERE collection = ? AND key = ?", (collection, key))
        self.version += 1

    def add_call(self, tool: str, arguments: Mapping[str, Any], result: Any) -> None:
        """Remember a call and its result."""
        values = (tool, json.dumps(arguments, sort_keys=True), json.dumps(result, sort_keys=True))
        self._database.execute("INSERT INTO calls (tool, arguments, result) VALUES (?, ?, ?)", values)

    def collections(self) -> dict[str, int]:
        """Return the number of entries of each collection."""
        return dict(self._database.execute("SELECT collection, count(*) FROM state GROUP BY 1 ORDER BY 1").fetchall())

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return all entries by collection and key."""
        found: dict[str, dict[str, Any]] = {}
        for collection, key, value in self._database.execute("SELECT * FROM state ORDER BY collection, key"):
            found.setdefault(collection, {})[key] = json.loads(value)
        return found

    def digest(self) -> str:
        """Return a digest of all entries."""
        text = json.dumps(self.entries(), sort_keys=True)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def close(self) -> None:
        """Drop the state."""
        self._database.close()

    @contextmanager
    def _only_reading(self) -> Iterator[None]:
        """Have the statements in the block read, and nothing else: no ATTACH, PRAGMA or write."""
        left = [WORK]

        def tick() -> bool:
            left[0] -= 1
            return left[0] < 0

        def allow(action: int, *about: object) -> int:
            return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY

        self._database.set_authorizer(allow)
        self._database.set_progress_handler(tick, 1000)
        try:
            yield
        finally:
            self._database.set_authorizer(None)
            self._database.set_progress_handler(None, 0)
