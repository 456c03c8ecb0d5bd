"""Fail where a test uses a private name of src/aenv: `env._client`, or `from aenv.main import _parser`.

Attributes of `self`, of other packages' modules, and of names that the test file defines itself are not ours.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined_in(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a module defines: functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        else:
            continue
        if is_private(name):
            yield name


def reads_of(tree: ast.Module, ours: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each private name of ours that a test file uses."""
    own, foreign = set(defined_in(tree)), {"self", "cls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            foreign |= {_bound(alias) for alias in node.names if alias.name.partition(".")[0] != "aenv"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] != "aenv":
            foreign |= {_bound(alias) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ours - own and _root(node.value) not in foreign:
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "aenv":
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _root(node: ast.expr) -> str | None:
    """Return the variable that an attribute is reached from: `a` for `a.b().c`."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def main() -> int:
    ours = {name for path in (ROOT / "src").rglob("*.py") for name in defined_in(ast.parse(path.read_text()))}
    found = [
        f"{path.relative_to(ROOT)}:{line}: private name {name!r}; test what a user of the class or module can see"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in reads_of(ast.parse(path.read_text()), ours)
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
