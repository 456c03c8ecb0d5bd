"""The SQLite database of an episode, made of `schema.sql` and the rows in private/scenario.json.

It is in memory, where no program of an agent can change it. Nothing is opened when this module is imported, so that
instances can be forks of a process that has imported it.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from aenv import private

SCHEMA = Path(__file__).with_name("schema.sql").read_text()


def scenario() -> dict[str, Any]:
    """Return the scenario: `rows` by table, `tasks`, and calls that must be `refused`."""
    return json.loads(private("scenario.json").read_text())


class Database:
    """The state of the world. One transaction runs at a time."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection; all that is written in the block is kept, or nothing if it raises."""
        with self._lock:
            if self._connection is None:
                self._connection = connect(scenario()["rows"])
            with self._connection:
                yield self._connection

    def reset(self) -> None:
        """Start over with the rows of the scenario."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    @contextmanager
    def copy(self) -> Iterator[None]:
        """Have the calls in the block work on a new world of their own; the present one stays as it is."""
        with self._lock:
            kept = self._connection
            with closing(connect(scenario()["rows"])) as self._connection:
                try:
                    yield
                finally:
                    self._connection = kept


def connect(rows: dict[str, list[dict[str, Any]]]) -> sqlite3.Connection:
    """Return a new database with the schema and these rows."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.executescript("PRAGMA foreign_keys = ON;" + SCHEMA)
    with connection:
        for table, listed in rows.items():
            for row in listed:
                names = ", ".join(f'"{name}"' for name in row)
                marks = ", ".join("?" * len(row))
                connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', tuple(row.values()))
    return connection


database = Database()
