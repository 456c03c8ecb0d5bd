"""What a project's code imports, told without running it.

Modules of others are imported once, by a warm parent, for all. Modules beside a file are what that file needs of its
folder when it is an environment by itself.

Four megabytes of code can take 20 seconds and gigabytes of memory to parse. So what a whole project imports is found
out by a process of its own, this module, with limits (`packages_of`): a platform has other projects to serve.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_IGNORED = {"tests", "test", "node_modules", "venv", "env", "vendor", "third_party", "__pycache__", "build", "dist"}


PARSE_SECONDS = 10
"""Of CPU time, for all files of a project. Where that is not enough, nothing is imported ahead."""
PARSE_WAIT = 30.0
PARSE_MEMORY = 1 << 30
_MOST_NAMES, _LONGEST_NAME = 1000, 200


async def packages_of(project: Path, only: Iterable[str] | None = None) -> list[str]:
    """What `imported_by` finds, in a process with limits; nothing where they do not suffice."""
    files = None if only is None else list(only)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "aenv.engines.static_imports", str(project), json.dumps(files),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
        )  # fmt: skip
    except OSError:
        return []
    try:
        async with asyncio.timeout(PARSE_WAIT):
            said, _ = await process.communicate()
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if not isinstance(error, TimeoutError):
            raise
        return []
    return list(json.loads(said)) if process.returncode == 0 else []


def imported_by(project: Path, only: Iterable[str] | None = None) -> list[str]:
    """Modules that the project's files name at their top level, in a ``try`` too, but for the project's own.

    ``only`` these of its files, if given, are what the project is.
    """
    if only is not None:
        source = project
        files = [file for name in only for file in _below(project / name)]
        own = {Path(name).stem for name in only}
    else:
        source = project / "src" if (project / "src").is_dir() else project
        files = list(_files(source))
        own = {file.stem for file in files} | {folder.name for folder in source.iterdir() if folder.is_dir()}
    found: dict[str, None] = {}
    for file in files:
        for node in _parsed(file):
            if isinstance(node, ast.Import):
                found.update(dict.fromkeys(alias.name for alias in node.names))
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found[node.module] = None
        if len(found) > _MOST_NAMES:
            break
    return [name for name in found if name.partition(".")[0] not in own | {"aenv", "__future__", source.name}]


class SourceFiles:
    """What single files need of their folders; looked at again only when something there has changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def needed_by(self, file: Path) -> tuple[str, ...]:
        """The file, and the modules and packages beside it that it imports, directly or by way of others."""
        known = self._known.get(file)
        if known is not None and known[0] == _stamp(file, known[1]):
            return known[1]
        found = _needed_by(file)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[file] = (_stamp(file, found), found)
        return found


_MOST_KNOWN = 256
LARGEST = 4 << 20
"""Bytes of a module that is looked into: parsing takes some fifty times as much memory, in the platform itself."""


def _stamp(file: Path, found: Iterable[str]) -> tuple[int, ...]:
    """Changes when a file does, or when one comes or goes."""
    paths = [file.parent, *(path for name in found for path in _below(file.parent / name))]
    return tuple(path.stat().st_mtime_ns for path in paths if path.exists())


def _needed_by(file: Path) -> tuple[str, ...]:
    found = {file.name: None}
    waiting = [file]
    while waiting:
        for node in _parsed(waiting.pop(), whole=True):
            for name in _imported(node):
                beside = _beside(file.parent, name)
                if beside is not None and beside.name not in found:
                    found[beside.name] = None
                    waiting += _below(beside)
    return tuple(found)


def _imported(node: ast.AST) -> list[str]:
    """Dotted names; those of things that may turn out to be no modules, too."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        prefix = f"{node.module}." if node.module else ""
        return [f"{prefix}{alias.name}" for alias in node.names]
    return []


def _beside(folder: Path, name: str) -> Path | None:
    """The file or the package in this folder that a dotted name leads to. A link is none: it may lead anywhere."""
    first, _, rest = name.partition(".")
    module, package = folder / f"{first}.py", folder / first
    if module.is_symlink() or package.is_symlink():
        return None
    if module.is_file():
        return module
    second = rest.partition(".")[0]
    inside = (package / "__init__.py", package / f"{second}.py", package / second / "__init__.py")
    return package if package.is_dir() and any(path.is_file() for path in inside) else None


def _below(path: Path) -> list[Path]:
    """A module's file, or all of a package's."""
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _parsed(file: Path, *, whole: bool = False) -> list[ast.AST]:
    """The statements of its top level, or all of its parts."""
    try:
        if file.stat().st_size > LARGEST:
            return []
        tree = ast.parse(file.read_bytes())
        return list(ast.walk(tree)) if whole else list(_unconditional(tree.body))
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return []  # loading it will say what is wrong


def _unconditional(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a top level, and of what is tried there: ``try: import numpy`` is an import for whoever has it."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.Try | ast.With):
            yield from _unconditional(statement.body)


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
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
    """Arguments: the project, and a JSON list of the files that it is, or null."""
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
