"""The reference says what the code does: every error, every variable, every route."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from aenv import errors
from aenv.http import client
from aenv.main import build_parser
from aenv.schema import paths
from aenv.sdk.environment import Environment
from tests.docs.pages import ROOT

SOURCES = ROOT / "src" / "aenv"
REFERENCE = ROOT / "docs" / "reference"


def rows_of(page: Path) -> list[list[str]]:
    """Return the cells of all tables."""
    lines = [line.strip() for line in page.read_text(encoding="utf-8").splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


# --- errors


def error_classes() -> list[type[errors.AEnvError]]:
    found: list[type[errors.AEnvError]] = []
    for module in (errors, client):
        own = [
            value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__
        ]
        found += [value for value in own if issubclass(value, errors.AEnvError)]
    return found


def row_of(cls: type[errors.AEnvError]) -> list[str]:
    own = [base.__name__ for base in cls.__bases__ if base is not Exception]
    return [
        f"`{cls.__name__}`",
        ", ".join(f"`{name}`" for name in own) or "`Exception`",
        f"`{cls.code}`",
        str(cls.status),
        cls.fault,
        "yes" if cls.retryable else "no",
        str(cls.exit_code),
    ]


PUBLIC_ERRORS = [cls for cls in error_classes() if cls.__module__ == "aenv.errors"]


@pytest.mark.parametrize("cls", PUBLIC_ERRORS, ids=lambda cls: cls.__name__)
def test_every_error_has_its_row(cls: type[errors.AEnvError]) -> None:
    assert row_of(cls) in rows_of(REFERENCE / "errors.md"), " | ".join(row_of(cls))


def test_the_page_has_no_errors_of_its_own() -> None:
    known = {f"`{cls.__name__}`" for cls in PUBLIC_ERRORS}
    named = {row[0] for row in rows_of(REFERENCE / "errors.md") if len(row) == 7 and row[0].startswith("`")}
    assert named == known


def test_the_http_errors_never_leave_the_client() -> None:
    """The client turns them into errors of the table, so the page need not have them."""
    hidden = {cls.__name__ for cls in error_classes()} - {cls.__name__ for cls in PUBLIC_ERRORS}
    assert hidden == {"ConnectFailed", "ConnectionLost", "ResponseTooLarge", "DeadlineExceeded"}


# --- variables


def variables_read() -> set[str]:
    """Return every name that the sources read from os.environ, or pass to click as an envvar."""
    found: set[str] = set()
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            found |= _read_by(node)
    return found


def _read_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return set()  # set or deleted, not read
    text = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript | ast.keyword) else ""
    pattern = r"^(?:os\.)?(?:environ\.(?:get|pop|setdefault)\(|environ\[|getenv\()'(\w+)'|^envvar='(\w+)'"
    return {name for pair in re.findall(pattern, text) for name in pair if name}


def test_every_variable_that_is_read_is_on_the_page() -> None:
    read = variables_read()
    assert {"AENV_INSTANCE_URL", "DUMMY_INSTANCE_IP", "AENV_TOKEN", "NO_COLOR", "OPENAI_API_KEY"} <= read
    named = set(re.findall(r"`(\w+)`", "\n".join(row[0] for row in rows_of(REFERENCE / "environment-variables.md"))))
    assert read <= named


def test_every_variable_on_the_page_is_in_the_sources() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in SOURCES.rglob("*.py"))
    for row in rows_of(REFERENCE / "environment-variables.md"):
        for name in re.findall(r"`([A-Za-z_]+)`", row[0]):
            assert name in text, name


# --- routes, options, parameters


def test_every_route_of_an_instance_has_a_heading() -> None:
    page = (REFERENCE / "http.md").read_text(encoding="utf-8")
    headings = "\n".join(re.findall(r"^## .*", page, re.MULTILINE))
    for path in (paths.MCP, paths.HEALTH, paths.TOOLS, f"{paths.TOOLS}/", paths.FUNCTION_LIST, paths.REWARD):
        assert f" {path}" in headings
    assert f" {paths.FUNCTIONS}/" in headings
    assert f"`{paths.REWARD}?{paths.REWARD_QUERY}=" in page


def test_every_option_of_the_server_is_in_the_reference() -> None:
    page = (REFERENCE / "server.md").read_text(encoding="utf-8")
    for action in build_parser()._actions:
        for option in action.option_strings:
            if action.help != "==SUPPRESS==" and option not in ("-h", "--help"):
                assert f"`{option}`" in page, option


def test_every_parameter_of_environment_is_in_the_guide() -> None:
    page = ROOT / "docs" / "guides" / "sdk.md"
    defaults = {row[0]: row[1] for row in rows_of(page) if len(row) == 3}
    for parameter in list(inspect.signature(Environment.__init__).parameters.values())[1:]:
        shown = "required" if parameter.default is parameter.empty else f"`{_shown(parameter.default)}`"
        assert defaults.get(f"`{parameter.name}`") == shown, parameter.name


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
