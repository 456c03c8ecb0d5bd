"""``aenv tasks``: list and show the tasks of an environment, a file or a plug-in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.output import Output, columns, output_option
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.schema.tasks import Task

SHOWN = 60
"""Characters of an instruction in a table."""


@click.group(cls=CommandGroup, name="tasks")
def command() -> None:
    """List and show tasks.

    SOURCE is an environment (NAME, NAME@VERSION or a project's folder), a .jsonl, .json or .parquet file, a folder of
    Harbor tasks, or the name of a set of tasks such as a benchmark: NAME or NAME?OPTION=VALUE.
    """


@command.command(name="list")
@click.argument("source")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of tasks.")
@output_option
def list_tasks(source: str, limit: int | None, output: Output) -> int:
    """List the tasks of SOURCE. Answers and solutions are not shown."""
    found = _tasks(source)[:limit]
    rows = [(task.id, _short(task.instruction), task.environment or "") for task in found]
    text = columns([("task", "instruction", "environment"), *rows]) if rows else "there are none"
    output.show([task.public().as_row() for task in found], lambda: text)
    return 0


@command.command()
@click.argument("source")
@click.argument("task")
@click.option("--hidden", is_flag=True, help="Show also what agents never see: answers, reward and solution.")
@output_option
def show(source: str, task: str, hidden: bool, output: Output) -> int:
    """Show one TASK of SOURCE."""
    found = next((each for each in _tasks(source) if each.id == task), None)
    if found is None:
        raise UsageError(f"{source} has no task {task!r}", {"hint": f"List them: aenv tasks list {source}"})
    row = (found if hidden else found.public()).as_row()
    output.show(row, lambda: _text(row))
    return 0


def _tasks(source: str) -> Sequence[Task]:
    from aenv.rollout.task_sources import find_source

    async def tasks() -> Sequence[Task]:
        found = find_source(source)
        try:
            return await found.tasks()
        finally:
            await found.close()

    return asyncio.run(tasks())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."


def _text(row: dict[str, Any]) -> str:
    instruction = row.get("instruction", "")
    others = [(name, str(value)) for name, value in row.items() if name != "instruction"]
    return f"{columns(others)}\n\n{instruction}".rstrip()
