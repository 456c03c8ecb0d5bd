"""Which modules of others a project imports, told without running it: a warm parent imports them once for all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_IGNORED = {"tests", "test", "node_modules", "venv", "env", "vendor", "third_party", "__pycache__", "build", "dist"}


def imported_by(project: Path) -> list[str]:
    """Modules that the project's files name at their top level, but for the project's own."""
    source = project / "src" if (project / "src").is_dir() else project
    files = list(_files(source))
    own = {file.stem for file in files} | {folder.name for folder in source.iterdir() if folder.is_dir()}
    found: dict[str, None] = {}
    for file in files:
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue  # loading it will say what is wrong
        for node in tree.body:
            if isinstance(node, ast.Import):
                found.update(dict.fromkeys(alias.name for alias in node.names))
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found[node.module] = None
    return [name for name in found if name.partition(".")[0] not in own | {"aenv", "__future__", source.name}]


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_file() and entry.suffix == ".py" and not entry.name.startswith("test_"):
            yield entry
        elif entry.is_dir() and entry.name not in _IGNORED and not (entry / "pyproject.toml").exists():
            yield from _files(entry)
