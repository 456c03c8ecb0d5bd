"""A site's state in SQLite, in memory, and what graders compare."""

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any


class State:
    """The tables of a site. They are in the memory of the process that grades, where no page and no program reaches."""

    def __init__(self, schema: str, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.executescript("PRAGMA foreign_keys = ON;" + schema)
        for table, listed in rows.items():
            for row in listed:
                self.insert(table, **row)

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        return [dict(row) for row in self._connection.execute(query, values)]

    def row(self, query: str, *values: Any) -> dict[str, Any] | None:
        """Return the first row of a query."""
        return next(iter(self.rows(query, *values)), None)

    def run(self, statement: str, *values: Any) -> int:
        """Run a statement and return how many rows it changed."""
        return self._connection.execute(statement, values).rowcount

    def insert(self, table: str, **row: Any) -> int:
        """Add a row and return its number."""
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        done = self._connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))
        return int(done.lastrowid or 0)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return all tables with all rows, in an order that does not depend on how they came about."""
        tables = [row["name"] for row in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {}
        for table in sorted(each for each in tables if not each.startswith("sqlite_")):
            rows = [tuple(row) for row in self._connection.execute(f"SELECT * FROM {table}")]
            found[table] = sorted(rows, key=repr)
        return found

    def close(self) -> None:
        """Forget everything."""
        self._connection.close()


def differences(wanted: State, found: State) -> list[str]:
    """Return what a site lacks and has too much, compared with how it should be."""
    lines = []
    expected, actual = wanted.dump(), found.dump()
    for table, rows in expected.items():
        lines += [f"missing in {table}: {row}" for row in rows if row not in actual[table]]
        lines += [f"unexpected in {table}: {row}" for row in actual[table] if row not in rows]
    return lines
