"""Pooled connections to one SQLite file, for the record store and the index of episodes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from aenv.errors import ConfigError

BUSY_SECONDS = 30.0


class SqliteConnections:
    """Connections to a file, each used by one thread at a time."""

    def __init__(
        self, path: Path, synchronous: Literal["FULL", "NORMAL"], as_error: Callable[[sqlite3.Error], Exception]
    ) -> None:
        """``synchronous``: whether a commit is synced to disk before it returns (``FULL``), or later.

        ``as_error``: returns the error to raise in place of one of SQLite.
        """
        self._path = path
        self._synchronous = synchronous
        self._as_error = as_error
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection. A transaction that is open at the end is rolled back."""
        with self._lock:
            db = self._idle.pop() if self._idle else None
        try:
            if db is None:
                db = sqlite3.connect(self._path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
                db.execute(f"PRAGMA synchronous = {self._synchronous}")
                db.execute("PRAGMA cache_size = -16384")
            yield db
        except sqlite3.Error as error:
            if db is not None:
                db.close()
                db = None
            raise self._as_error(error) from error
        finally:
            if db is not None:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                with self._lock:
                    self._idle.append(db)

    def create_tables(self, statements: str, version: int) -> bool:
        """Create the tables of this version of the format unless the file has them; return whether it had none.

        Raises:
            ConfigError: a newer version wrote the file.
        """
        with self.use() as db:
            found = _version(db)
            if found > version:
                raise ConfigError(f"{self._path} was written by a newer aenv; upgrade this one to use it")
            if found == version:
                return False
            self._path.chmod(0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            if _version(db) == version:  # created meanwhile by another process
                return False
            for statement in statements.split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version}")
            db.execute("COMMIT")
            return True

    def close(self) -> None:
        """Close the idle connections. The file may be used again afterwards."""
        with self._lock:
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()

    def forget(self) -> None:
        """Drop the connections without closing them: in a forked process they belong to the parent."""
        self._lock = threading.Lock()
        self._inherited = self._idle
        self._idle = []


def _version(db: sqlite3.Connection) -> int:
    found: int = db.execute("PRAGMA user_version").fetchone()[0]
    return found
