"""Python code of an agent, run in a separate process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aenv import StateDestroyed, run_python
from aenv.errors import InvalidUse
from tests.waiting import wait_while


def test_code_can_print_and_read_its_input() -> None:
    run = run_python("import sys; print(sys.stdin.read().upper()); print('oh', file=sys.stderr)", stdin="hello")
    assert (run.ok, run.exit_code, run.stdout, run.stderr) == (True, 0, "HELLO\n", "oh\n")


def test_a_function_of_the_code_is_called_and_its_value_returned() -> None:
    run = run_python("def add(a, b):\n    return {'sum': a + b}", call="add", arguments=[1, 2.5])
    assert run.value == {"sum": 3.5}


def test_an_error_is_reported_without_a_value() -> None:
    run = run_python("def f():\n    return 1 / 0", call="f")
    assert not run.ok
    assert run.value is None
    assert "ZeroDivisionError" in run.stderr
    assert "f" in run_python("x = 1", call="f").stderr


@pytest.mark.parametrize("value", ["float('nan')", "object()", "{1, 2}"])
def test_a_value_that_is_not_json_is_a_failed_run(value: str) -> None:
    run = run_python(f"def f():\n    return {value}", call="f")
    assert run.value is None or run.value != run.value


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_traceback_shows_only_the_agents_code() -> None:
    run = run_python("def f():\n    return 1 / 0", call="f")
    assert run.stderr.splitlines() == [
        "Traceback (most recent call last):", '  File "<code>", line 2, in f', "ZeroDivisionError: division by zero",
    ]  # fmt: skip
    assert run_python("x = 1", call="f").stderr.endswith("NameError: the code defines no f()\n")
    assert run_python("import sys; sys.exit(7)").exit_code == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": "512Mi"}, {"memory": 0}, {"memory": True}, {"timeout": 0}, {"timeout": -1}, {"timeout": "5"},
        {"timeout": float("nan")}, {"timeout": True}, {"stdin": b""}, {"variables": {"A": 1}}, {"variables": "A=1"},
        {"call": 7}, {"directory": 7}, {"arguments": [object()]},
    ],
)  # fmt: skip
def test_an_invalid_argument_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidUse, match=f"run_python: {next(iter(wrong))}"):
        run_python("pass", **wrong)


def test_code_that_is_not_text_is_a_failed_run() -> None:
    assert not run_python(None).ok  # type: ignore[arg-type]


def test_code_that_takes_too_long_is_killed_with_its_child_processes() -> None:
    code = "import subprocess\np = subprocess.Popen(['sleep', '600'])\nprint(p.pid, flush=True)\np.wait()"
    run = run_python(code, timeout=1.0)
    assert run.timed_out
    assert run.exit_code is None
    wait_while(lambda: not _is_gone(int(run.stdout)), "what it started goes on")


def test_the_memory_limit_of_code_is_enforced() -> None:
    assert "MemoryError" in run_python("x = bytearray(1 << 30)", memory=256 << 20).stderr


def test_long_output_is_truncated() -> None:
    run = run_python("print('x' * (5 << 20))")
    assert len(run.stdout) == 1 << 20


def test_code_sees_nothing_of_the_process_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    code = "import os, sys\ndef look():\n    return [dict(os.environ), os.getcwd(), sys.argv, 'aenv' in sys.modules]"
    run = run_python(code, call="look", variables={"OWN": "1"})
    variables, folder, arguments, loaded = run.value
    assert "API_KEY" not in variables
    assert variables["OWN"] == "1"
    assert folder != os.getcwd()
    assert arguments == ["-c"]
    assert not loaded


def test_a_forged_value_is_only_a_value() -> None:
    """The agent's code controls its output, but not the answer that it is compared with."""
    code = "import os\nos.write(4, b'1')\ndef solve(x):\n    return 'right'"
    assert run_python(code, call="solve", arguments=[2]).value in ("right", None, 1)


_ANSWER = "import os, sys\nanswer = sys._getframe().f_back.f_globals['answer']\n"


@pytest.mark.attack("grading")
@pytest.mark.parametrize("written", ["b'[' * 200_000", "b'[' * 200_000 + b']' * 200_000", "b'9' * 100_000", "b'\\xff'"])
def test_an_unreadable_value_is_none(written: str) -> None:
    run = run_python(f"{_ANSWER}os.write(answer, {written})\nos._exit(0)", call="solve")
    assert (run.ok, run.value) == (True, None)


@pytest.mark.attack("grading")
def test_folders_of_any_depth_do_not_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = run_python("import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nprint('done')")
    assert run.stdout == "done\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.attack("grading")
def test_a_removed_working_directory_counts_as_destroyed_by_the_agent(tmp_path: Path) -> None:
    with pytest.raises(StateDestroyed, match="code cannot run in"):
        run_python("1", directory=str(tmp_path / "gone"))


@pytest.mark.attack("grading")
def test_a_missing_temporary_folder_counts_as_destroyed_by_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(StateDestroyed, match="no folder for temporary files"):
        run_python("1")
