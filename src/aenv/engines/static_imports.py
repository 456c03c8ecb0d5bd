"""Find out what a project's code imports, without running it.

Third-party packages are imported once, by a preloaded parent. Modules beside a file are shown to the sandbox when that
file is an environment by itself.

Four megabytes of code can take 20 seconds and gigabytes of memory to parse. So a whole project is parsed by a process
of its own, this module, with limits (`packages_of`): a platform has other projects to serve.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from aenv.subprocesses import run_async

_IGNORED = {"tests", "test", "node_modules", "venv", "env", "vendor", "third_party", "__pycache__", "build", "dist"}


PARSE_SECONDS = 10
"""CPU time for all files of a project. Beyond that, no packages are imported ahead."""
PARSE_WAIT = 30.0
PARSE_MEMORY = 1 << 30
_MOST_NAMES, _LONGEST_NAME = 1000, 200


async def packages_of(project: Path, only: Iterable[str] | None = None) -> list[str]:
    """Return what `imported_by` finds, in a process with limits; nothing if it exceeds them."""
    files = None if only is None else list(only)
    command = [sys.executable, "-P", "-m", "aenv.engines.static_imports", str(project), json.dumps(files)]
    try:
        done = await run_async(command, stderr=subprocess.DEVNULL, cwd="/", timeout=PARSE_WAIT)
    except OSError:  # TimeoutError is one, too
        return []
    return list(json.loads(done.stdout)) if done.ok else []


def imported_by(project: Path, only: Iterable[str] | None = None) -> list[str]:
    """Return the modules that the project's files import at their top level, in a ``try`` too, without its own.

    ``only``: the files that belong to the project; None: all.
    """
    if only is not None:
        source = project
        files = [file for name in only for file in _files_of(project / name)]
        own = {Path(name).stem for name in only}
    else:
        source = project / "src" if (project / "src").is_dir() else project
        files = list(_files(source))
        own = {file.stem for file in files} | {folder.name for folder in source.iterdir() if folder.is_dir()}
    found: dict[str, None] = {}
    for file in files:
        for node in _parse(file):
            if isinstance(node, ast.Import):
                found.update(dict.fromkeys(alias.name for alias in node.names))
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found[node.module] = None
        if len(found) > _MOST_NAMES:
            break
    return [name for name in found if name.partition(".")[0] not in own | {"aenv", "__future__", source.name}]


class SourceFiles:
    """Finds the modules of their folder that single files need. Results are cached until one of the files changes."""

    def __init__(self) -> None:
        self._cache: dict[Path, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def needed_by(self, file: Path) -> tuple[str, ...]:
        """Return the file, and the modules and packages beside it that it imports, directly or indirectly."""
        cached = self._cache.get(file)
        if cached is not None and cached[0] == _stamp(file, cached[1]):
            return cached[1]
        found = _needed_by(file)
        if len(self._cache) >= _MOST_CACHED:
            self._cache.clear()
        self._cache[file] = (_stamp(file, found), found)
        return found


_MOST_CACHED = 256
LARGEST = 4 << 20
"""Size limit of a module, in bytes: parsing takes some fifty times as much memory, in the platform itself."""


def _stamp(file: Path, found: Iterable[str]) -> tuple[int, ...]:
    """Return a value that changes when a file does, is added or is removed."""
    paths = [file.parent, *(path for name in found for path in _files_of(file.parent / name))]
    return tuple(path.stat().st_mtime_ns for path in paths if path.exists())


def _needed_by(file: Path) -> tuple[str, ...]:
    found = {file.name: None}
    waiting = [file]
    while waiting:
        for node in _parse(waiting.pop(), whole=True):
            for name in _imported(node):
                beside = _beside(file.parent, name)
                if beside is not None and beside.name not in found:
                    found[beside.name] = None
                    waiting += _files_of(beside)
    return tuple(found)


def _imported(node: ast.AST) -> list[str]:
    """Return the dotted names that a node imports. Some may not be modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        prefix = f"{node.module}." if node.module else ""
        return [f"{prefix}{alias.name}" for alias in node.names]
    return []


def _beside(folder: Path, name: str) -> Path | None:
    """Return the module or package of a dotted name in this folder. Links are ignored: they may lead anywhere."""
    first, _, rest = name.partition(".")
    module, package = folder / f"{first}.py", folder / first
    if module.is_symlink() or package.is_symlink():
        return None
    if module.is_file():
        return module
    second = rest.partition(".")[0]
    inside = (package / "__init__.py", package / f"{second}.py", package / second / "__init__.py")
    return package if package.is_dir() and any(path.is_file() for path in inside) else None


def _files_of(path: Path) -> list[Path]:
    """Return a module's file, or all files of a package."""
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _parse(file: Path, *, whole: bool = False) -> list[ast.AST]:
    """Return the statements of a file's top level, or all nodes of its syntax tree."""
    try:
        if file.stat().st_size > LARGEST:
            return []
        tree = ast.parse(file.read_bytes())
        return list(ast.walk(tree)) if whole else list(_unconditional(tree.body))
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return []  # loading the file reports the error


def _unconditional(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Iterate over statements, and those in ``try`` and ``with`` bodies: ``try: import numpy`` counts as an import."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.Try | ast.With):
            yield from _unconditional(statement.body)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the modules in the order in which they are imported: the loader leaves those with an underscore to others.

    So a package that another one needs first, such as one that sets its variables, is imported first here, too.
    """
    for entry in sorted(folder.iterdir(), key=lambda entry: (entry.name.startswith("_"), entry.name)):
        if entry.name.startswith((".", "__")):
            continue
        if entry.is_file() and entry.suffix == ".py" and not entry.name.startswith("test_"):
            yield entry
        elif (
            entry.is_dir()
            and not entry.is_symlink()
            and entry.name not in _IGNORED
            and not (entry / "pyproject.toml").exists()
        ):
            yield from _files(entry)


def _main() -> None:
    """Print the imports as JSON. Arguments: the project, and a JSON list of its files, or null for all."""
    import resource  # here: the rest of this module is imported on every system

    from aenv.isolation.kernel import linux

    linux.die_with_parent()
    resource.setrlimit(resource.RLIMIT_DATA, (PARSE_MEMORY, PARSE_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (PARSE_SECONDS, PARSE_SECONDS))
    project, only = sys.argv[1:]
    names = imported_by(Path(project), json.loads(only))
    print(json.dumps([name for name in names if len(name) <= _LONGEST_NAME][:_MOST_NAMES]))  # noqa: T201 - its output


if __name__ == "__main__":
    _main()
