"""Tools that read and write the rows of a table, made from its columns."""

import inspect
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from database import connect, database

from aenv import ToolResult, register_tool

TYPES = {"INTEGER": int, "TEXT": str, "REAL": float, "BOOLEAN": bool}
MOST_ROWS = 50


@dataclass(frozen=True)
class Column:
    name: str
    type: type
    required: bool
    """Whether a new row needs a value."""
    is_key: bool


@dataclass(frozen=True)
class Table:
    name: str
    columns: list[Column]
    sql: str
    """The statement that creates it: it tells agents the constraints."""

    @property
    def key(self) -> str:
        return next(column.name for column in self.columns if column.is_key)


def tables() -> dict[str, Table]:
    """Return the tables of the schema by name."""
    with closing(connect({})) as connection:
        listed = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        return {name: Table(name, _columns(connection, name), sql) for name, sql in listed.fetchall()}


def _columns(connection: sqlite3.Connection, table: str) -> list[Column]:
    found = []
    for _, name, kind, not_null, default, key in connection.execute(f'PRAGMA table_info("{table}")'):
        if kind.upper() not in TYPES:
            raise ValueError(f"{table}.{name} has the type {kind!r}; expected one of {', '.join(TYPES)}")
        automatic = bool(key) and kind.upper() == "INTEGER"
        required = bool(not_null or key) and default is None and not automatic
        found.append(Column(name, TYPES[kind.upper()], required, bool(key)))
    if sum(column.is_key for column in found) != 1:
        raise ValueError(f"{table} needs a primary key of one column")
    return found


def offer_reads(*names: str) -> None:
    """Offer `find_TABLE` for each of these tables."""
    for table in map(tables().__getitem__, names):
        filters = [_optional(column.name, column.type) for column in table.columns]
        _offer(
            f"find_{table.name}", _find, table, filters, f"Find up to {MOST_ROWS} rows. A text matches a part of it."
        )


def offer_writes(name: str, *verbs: str) -> None:
    """Offer `insert_TABLE`, `update_TABLE` and `delete_TABLE`, or those of them that `verbs` names."""
    table = tables()[name]
    key = [_required(column.name, column.type) for column in table.columns if column.is_key]
    others = [_optional(column.name, column.type) for column in table.columns if not column.is_key]
    new = [
        _required(column.name, column.type) if column.required else _optional(column.name, column.type)
        for column in sorted(table.columns, key=lambda column: not column.required)
        if column.required or not column.is_key
    ]
    clear = inspect.Parameter("clear", inspect.Parameter.KEYWORD_ONLY, default=(), annotation=list[str])
    for verb in verbs or ("insert", "update", "delete"):
        if verb == "insert":
            _offer(f"insert_{name}", _insert, table, new, "Insert a row, and return it.")
        elif verb == "update":
            about = "Change the given columns of a row, and return it; `clear` names columns to empty."
            _offer(f"update_{name}", _update, table, [*key, *others, clear], about)
        elif verb == "delete":
            _offer(f"delete_{name}", _delete, table, key, "Delete a row, and return it.")
        else:
            raise ValueError(f"unknown write {verb!r}; expected insert, update or delete")


def refused(reason: object) -> ToolResult:
    """A refusal is part of the world and not an error of the environment, so it is returned and not raised."""
    return ToolResult([{"type": "text", "text": f"Refused: {reason}"}], is_error=True)


def _offer(
    name: str, action: Callable[..., Any], table: Table, parameters: list[inspect.Parameter], about: str
) -> None:
    def tool(**given: Any) -> Any:
        try:
            with database.transaction() as connection:
                return action(connection, table, {name: value for name, value in given.items() if value is not None})
        except (sqlite3.Error, OverflowError, LookupError) as error:
            return refused(error)

    tool.__name__ = tool.__qualname__ = name
    tool.__signature__ = inspect.Signature(parameters)
    tool.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    register_tool(name=name, description=f"{about}\n\n{table.sql}")(tool)


def _find(connection: sqlite3.Connection, table: Table, given: dict[str, Any]) -> list[dict[str, Any]]:
    wanted = [
        f'instr(lower("{name}"), lower(?))' if isinstance(given[name], str) else f'"{name}" = ?' for name in given
    ]
    where = f"WHERE {' AND '.join(wanted)}" if wanted else ""
    found = connection.execute(
        f'SELECT * FROM "{table.name}" {where} ORDER BY "{table.key}" LIMIT {MOST_ROWS}', tuple(given.values())
    )
    return [dict(row) for row in found]


def _insert(connection: sqlite3.Connection, table: Table, given: dict[str, Any]) -> dict[str, Any]:
    names, marks = ", ".join(f'"{name}"' for name in given), ", ".join("?" * len(given))
    values = f"({names}) VALUES ({marks})" if given else "DEFAULT VALUES"
    made = connection.execute(f'INSERT INTO "{table.name}" {values}', tuple(given.values())).lastrowid
    return dict(connection.execute(f'SELECT * FROM "{table.name}" WHERE rowid = ?', (made,)).fetchone())


def _update(connection: sqlite3.Connection, table: Table, given: dict[str, Any]) -> dict[str, Any]:
    key = given.pop(table.key)
    cleared = given.pop("clear", ())
    unknown = sorted(set(cleared) - {column.name for column in table.columns})
    if unknown:
        raise LookupError(f"{table.name} has no column {', '.join(unknown)}")
    changes = {**given, **dict.fromkeys(cleared)}
    _row(connection, table, key)
    if changes:
        assignments = ", ".join(f'"{name}" = ?' for name in changes)
        connection.execute(f'UPDATE "{table.name}" SET {assignments} WHERE "{table.key}" = ?', (*changes.values(), key))
    return _row(connection, table, changes.get(table.key, key))


def _delete(connection: sqlite3.Connection, table: Table, given: dict[str, Any]) -> dict[str, Any]:
    row = _row(connection, table, given[table.key])
    connection.execute(f'DELETE FROM "{table.name}" WHERE "{table.key}" = ?', (given[table.key],))
    return row


def _row(connection: sqlite3.Connection, table: Table, key: Any) -> dict[str, Any]:
    found = connection.execute(f'SELECT * FROM "{table.name}" WHERE "{table.key}" = ?', (key,)).fetchone()
    if found is None:
        raise LookupError(f"{table.name} has no row with {table.key} {key!r}")
    return dict(found)


def _required(name: str, type: type) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=type)


def _optional(name: str, type: type) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=type | None)
