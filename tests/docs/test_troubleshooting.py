"""The troubleshooting page has a row for every error code, with a cause and a cure."""

from __future__ import annotations

import inspect

from aenv import errors
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"


def codes() -> set[str]:
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    return {cls.code for cls in classes if issubclass(cls, errors.AEnvError)}


def rows() -> dict[str, list[str]]:
    lines = [line.strip().strip("|").split("|") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    cells = [[cell.strip() for cell in line] for line in lines if len(line) == 3]
    return {code.strip("`"): rest for code, *rest in cells if code.startswith("`")}


def test_every_error_code_has_a_row_and_no_other_does() -> None:
    assert len(codes()) > 20
    assert set(rows()) == codes()


def test_every_row_has_a_cause_and_a_cure() -> None:
    for code, texts in rows().items():
        assert all(text.endswith((".", ".)")) and len(text) > 15 for text in texts), code
