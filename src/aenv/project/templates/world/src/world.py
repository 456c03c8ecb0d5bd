"""The world: its tools, its tasks, and how the state that an agent leaves is checked.

To make another world, change `schema.sql` and private/scenario.json, and say here which tables agents may read and
write. Rules that a table cannot express are tools of their own, such as `hand_over`.
"""

from collections.abc import Iterator
from typing import Any, Literal

from database import database, scenario
from tables import offer_reads, offer_writes, refused, tables

from aenv import ToolResult, get_registry, register_function, register_tasks, register_tool

offer_reads("people", "tickets", "comments")
offer_writes("tickets", "insert", "update")
offer_writes("comments", "insert", "delete")


@register_tool
def hand_over(ticket: int, team: Literal["accounts", "hardware", "network"]) -> ToolResult | dict[str, Any]:
    """Hand a ticket over to another team. It loses its assignee, and is open again."""
    with database.transaction() as connection:
        changed = connection.execute(
            "UPDATE tickets SET team = ?, assignee = NULL, status = 'open' WHERE id = ? AND team <> ?",
            (team, ticket, team),
        )
        if changed.rowcount != 1:
            return refused(f"there is no ticket {ticket}, or the team {team} has it already")
        return {"ticket": ticket, "team": team}


@register_function
def reset() -> None:
    """Start over with the rows of the scenario."""
    database.reset()


@register_function
def rows(query: str) -> list[dict[str, Any]]:
    """Return the rows that a SELECT gives. It cannot change anything; agents are not shown it."""
    with database.transaction() as connection:
        connection.execute("PRAGMA query_only = ON")
        try:
            return [dict(row) for row in connection.execute(query)]
        finally:
            connection.execute("PRAGMA query_only = OFF")


@register_tasks
def tasks() -> Iterator[dict[str, Any]]:
    """Yield the tasks. Each is solved once in a world of its own: the state reached is the one to reach.

    `check` of a task lists the queries that are compared; by default all rows of all tables.
    """
    everything = [f'SELECT * FROM "{table.name}" ORDER BY "{table.key}"' for table in tables().values()]
    for task in scenario()["tasks"]:
        queries = task.pop("check", everything)
        with database.copy():
            for step in task["solution"]:
                call(step["tool"], step["arguments"])
            state = [
                {"function": "rows", "arguments": {"query": query}, "expected": {"value": rows(query)}}
                for query in queries
            ]
        yield {**task, "setup": {"function": "reset"}, "reward": {"state": state}}


def call(tool: str, arguments: dict[str, Any]) -> Any:
    """Call a tool of this world.

    Raises:
        ValueError: it refuses the call.
    """
    result = get_registry().tools[tool].func(**arguments)
    if isinstance(result, ToolResult) and result.is_error:
        raise ValueError(f"{tool}({arguments}): {result.text}")
    return result
