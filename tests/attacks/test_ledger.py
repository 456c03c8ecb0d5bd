"""The plugin that counts attacks, in a separate pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
from tests.attacks.ledger import Attacks


@pytest.mark.attack("grading")
@pytest.mark.parametrize("good", [True, False])
def test_one(good: bool) -> None:
    assert good


@pytest.mark.attack("grading")
def test_that_cannot_run_here() -> None:
    pytest.skip("not here")


@pytest.mark.attack("hub")
def test_whose_setup_fails(nothing_of_that_name: None) -> None:
    pass


def test_several(attacks: Attacks) -> None:
    attacks.record("isolation", "ptrace", held=True)
    attacks.record("isolation", "mount", held=False)
    attacks.all_held()
"""


@pytest.mark.long
@pytest.mark.parametrize("more", [[], ["-n", "2"]])
def test_counts_are_printed_for_each_kind(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.attacks.ledger",
        "-p",
        "no:cacheprovider",
        "-q",
        "--tb=no",
        *more,
    ]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "test_it.py"], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("attacks", "  not held"))]
    assert lines == [
        "attacks grading: 2 tried, 1 held",
        "  not held: test_one[False]",
        "attacks hub: 1 tried, 0 held",
        "  not held: test_whose_setup_fails",
        "attacks isolation: 2 tried, 1 held",
        "  not held: mount",
    ]
