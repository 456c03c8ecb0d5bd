"""Commands that messages tell users to run exist, with the options that they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from aenv.cli.main import cli

SOURCES = Path(__file__).parents[2] / "src" / "aenv"
COMMAND = re.compile(r"(?<![\w/.~-])aenv ((?:[a-z][a-z-]*)(?: +(?:--?[a-z][a-z-]*|[a-z][a-z-]*|\{\}|[A-Z]+))*)")
PROSE = {
    "is", "has", "and", "or", "to", "does", "itself", "runs", "looks", "as", "in", "was", "depends", "of", "can",
    "where", "for", "needs", "that", "package", "cannot", "with", "than", "on", "knows", "imports", "loads",
    "import", "store",
}  # fmt: skip
"""Words after the name of the product, as opposed to the name of the command."""


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the messages of a module: texts, with ``{}`` for what is filled in, but without docstrings."""
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inner.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in node.values)
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


def advice() -> list[tuple[str, str]]:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        for line, text in texts(ast.parse(path.read_text())):
            for match in COMMAND.finditer(text):
                if match[1].split()[0] not in PROSE:
                    found.append((f"{path.relative_to(SOURCES)}:{line}", match[1]))
    return found


def problem(text: str) -> str | None:
    """Return what is wrong with a command line; None if it can be parsed so far."""
    command: click.Command = cli
    context = click.Context(cli, info_name="aenv")
    for word in text.split():
        if word.startswith("-"):
            known = {option for each in command.get_params(context) for option in (*each.opts, *each.secondary_opts)}
            if word not in known:
                return f"{command.name} has no option {word}"
        elif isinstance(command, click.Group):
            found = command.get_command(context, word)
            if found is None and not command.invoke_without_command:
                return f"there is no command '{word}'"
            if found is not None:
                command, context = found, click.Context(found, parent=context, info_name=word)
    return None


def test_advice_is_found() -> None:
    assert len(advice()) > 30


@pytest.mark.parametrize(("where", "text"), advice())
def test_a_command_that_a_message_names_exists(where: str, text: str) -> None:
    assert problem(text) is None, f"{where}: aenv {text}"
