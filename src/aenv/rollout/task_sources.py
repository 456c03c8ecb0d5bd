"""Sources of tasks: rows, files, the environment itself, or plug-ins such as benchmarks and task folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aenv import plugins
from aenv.authoring.task_rows import problems
from aenv.errors import ConfigError, UsageError
from aenv.rollout.task_set import TaskSet
from aenv.schema.tasks import Task
from aenv.sdk.environment import Environment

PLUGINS = "aenv.tasks"
"""Group of entry points: a name, and a function that returns a `TaskSet` for options that are strings."""
_FILES = (".jsonl", ".json", ".parquet")


class EnvironmentTasks(TaskSet):
    """The tasks that an environment lists itself, with ``@register_tasks``."""

    def __init__(self, environment: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__([], environment, **more)
        self._arguments = dict(arguments or {})

    async def tasks(self) -> Sequence[Task]:
        if not self._tasks:
            async with Environment(self.environment, **self._options) as env:
                self._tasks = [_without_paths(task) for task in await env.list_tasks(self._arguments)]
        return self._tasks


def _without_paths(task: Task) -> Task:
    """Return a task that an environment lists, which may be untrusted: it names no folder of this machine.

    Raises:
        UsageError: it does.
    """
    if task.datasource.startswith("/"):
        hint = "If you trust it, pass that datasource yourself."
        raise UsageError(
            f"the environment lists a task that mounts {task.datasource[:200]} of this machine", {"hint": hint}
        )
    if task.environment is not None and (task.environment[:1] in (".", "~") or "/" in task.environment):
        raise UsageError(f"the environment lists a task of {task.environment[:200]}, a folder of this machine")
    return task


def find_tasks(
    given: TaskSet | Sequence[Task | Mapping[str, Any]] | str | Path | None,
    environment: str = "",
    *,
    options: Mapping[str, Any] | None = None,
    score: str | None = None,
    require_environment: bool = True,
) -> TaskSet:
    """Return the set of tasks that ``given`` is or names.

    A string is a file; ``NAME`` or ``NAME?OPTION=VALUE&...`` of a plug-in; a folder that a plug-in reads; or
    ``?ARGUMENT=VALUE&...``, arguments of the function with which the environment lists its tasks.

    Raises:
        UsageError: there are no such tasks.
    """
    if isinstance(given, TaskSet):
        return given
    if given is None or (isinstance(given, str) and given.startswith("?")):
        if not environment:
            hint = "Name one, or tasks that bring their own: --tasks FOLDER, --tasks BENCHMARK."
            raise UsageError("no environment is given", {"hint": hint})
        listed = parse_qsl(given[1:], keep_blank_values=True) if isinstance(given, str) else []
        arguments = {name: _json_or_text(value) for name, value in listed}
        return EnvironmentTasks(environment, arguments, options=options, score=score)
    if not isinstance(given, str | Path):
        return _rows(given, environment, options, score, require_environment)
    name, _, query = str(given).partition("?")
    if plugins.has(PLUGINS, name) and not Path(str(given)).exists():
        made: TaskSet = plugins.load(PLUGINS, name)(dict(parse_qsl(query, keep_blank_values=True)))
        return made
    path = Path(given).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.suffix in _FILES:
        return _rows(read_rows(path), environment, options, score, require_environment)
    known = ", ".join(plugins.names(PLUGINS)) or "none"
    raise UsageError(f"no tasks at {given}", {"hint": f"Name a .jsonl, .json or .parquet file, or one of: {known}"})


def find_source(source: str) -> TaskSet:
    """Return the tasks of a file, a folder, a plug-in or an environment, whichever ``source`` names.

    Raises:
        UsageError: there are no such tasks.
    """
    name, question, query = source.partition("?")
    path = Path(source).expanduser()
    if plugins.has(PLUGINS, name) or path.suffix in _FILES or (path.is_dir() and not _is_project(path)):
        return find_tasks(source, require_environment=False)
    return find_tasks(f"{question}{query}" if question else None, name)


def _is_project(path: Path) -> bool:
    return (path / "config.json").is_file()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL, JSON or Parquet file.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            return _parquet(path)
        data = path.read_bytes()
        rows = json.loads(data) if path.suffix == ".json" else list(_json_lines(data))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path} does not contain a list of objects")
    return rows


def _json_lines(data: bytes) -> Iterator[Any]:
    """Yield the values of JSON lines. Raises ValueError with the number of a line that is none."""
    for number, line in enumerate(data.splitlines(), 1):  # a text has further line ends, which JSON may contain
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON ({error})") from None


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        hint = {"hint": "Install it: pip install pyarrow"}
        raise ConfigError(f"{path} is a Parquet file, and pyarrow is not installed", hint) from None
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def _rows(
    rows: Iterable[Task | Mapping[str, Any]],
    environment: str,
    options: Mapping[str, Any] | None,
    score: str | None,
    require_environment: bool,
) -> TaskSet:
    tasks = []
    for number, row in enumerate(rows):
        try:
            tasks.append(row if isinstance(row, Task) else Task.of_row(row, number))
        except ValueError as error:
            raise UsageError(f"row {number + 1} is not a task: {problems(error)}") from None
    found = TaskSet(tasks, environment, options=options, score=score)
    if require_environment and not environment and any(task.environment is None for task in found._tasks):
        raise UsageError("no environment is given, and a task names none")
    return found


def _folder(path: Path) -> TaskSet:
    """Return the tasks of a folder, read by the first plug-in that knows its format."""
    for name in plugins.names(PLUGINS):
        reads = getattr(plugins.load(PLUGINS, name), "reads_folder", None)
        if reads is not None and reads(path):
            made: TaskSet = plugins.load(PLUGINS, name)({"tasks": str(path)})
            return made
    raise UsageError(f"{path} contains no tasks in a known format")


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
