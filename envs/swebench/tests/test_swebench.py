"""What can be told without a repository, and the benchmark's own grading, where that is installed."""

import re
import subprocess
import sys
from pathlib import Path

import _canaries
import _evaluation
import _grading
import _repository as repository
import pytest
import swebench_env

installed = pytest.mark.skipif(not _grading.installed(), reason="swebench is not installed")
ROW = {
    "instance_id": "a__b-1",
    "log_parser": "parse_log_pytest",
    "FAIL_TO_PASS": '["t.py::test_new"]',
    "PASS_TO_PASS": ["t.py::test_old"],
    "eval_script": (
        "#!/bin/bash\nsource /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed\n"
        f": '{_evaluation.START}'\npytest -rA t.py\n: '{_evaluation.END}'\n"
    ),
}


def test_without_a_repository_tools_and_reward_say_how_to_get_one():
    for use in (
        lambda: swebench_env.shell("true"),
        lambda: swebench_env.get_task(),
        lambda: swebench_env.swebench_reward("x", ""),
    ):
        with pytest.raises(RuntimeError, match=r"aenv bench swe --instances \.\.\. --prepare"):
            use()


def test_the_benchmarks_script_gets_the_paths_of_this_instance_and_ends_with_the_status_of_the_tests():
    text = _evaluation.script(ROW, Path("/tmp/out put"))
    assert "miniconda" not in text
    assert f"cd {repository.TESTBED}" in text
    assert text.endswith("kill -STOP $$\n{\npytest -rA t.py\n} > '/tmp/out put' 2>&1\nexit $?\n")
    assert _evaluation.command_of(ROW) == "pytest -rA t.py"
    with pytest.raises(ValueError, match="where its tests begin"):
        _evaluation.script({**ROW, "eval_script": "pytest"}, Path("x"))


TESTS = """import pytest


def test_sum():
    assert sum([1, 2]) == 3


class TestText:
    def test_upper(self):
        text = "a"
        assert text.upper() == "A"

    @pytest.mark.parametrize("n", [1, 2])
    def test_both(self, n):
        with pytest.raises(ZeroDivisionError):
            n / 0


def test_one_line(): assert True


@pytest.mark.xfail
def test_that_need_not_fail():
    assert 1 == 2
"""
KNOWN = {"test_sum", "test_upper", "test_both", "test_one_line", "test_that_need_not_fail"}


def test_twins_of_passing_tests_fail_and_the_tests_pass_as_before(tmp_path):
    for number in range(5):  # which ones, and how they are called, is chosen anew each time
        text, planted = _canaries.plant(TESTS, KNOWN, {"test_sum"})
        assert len(planted) == 3
        assert {each.original for each in planted} == {"test_sum", "test_upper", "test_both"}
        file = tmp_path / f"test_{number}.py"
        file.write_text(text)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-rA",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            file.name,
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        log = _canaries.unveiled(done.stdout, planted)
        statuses = {test: status for status, test in re.findall(r"^(PASSED|FAILED|XFAIL) (\S+)", log, re.MULTILINE)}
        real = {test.partition("::")[2]: status for test, status in statuses.items() if "__canary" not in test}
        assert real == {
            "test_sum": "PASSED",
            "TestText::test_upper": "PASSED",
            "TestText::test_both[1]": "PASSED",
            "TestText::test_both[2]": "PASSED",
            "test_one_line": "PASSED",
            "test_that_need_not_fail": "XFAIL",
        }
        assert _canaries.held(statuses, planted) is True
        lying = dict.fromkeys(statuses, "PASSED")
        assert _canaries.held(lying, planted) is False
        assert (
            _canaries.held({test: status for test, status in statuses.items() if "__canary" not in test}, planted)
            is False
        )
        assert _canaries.held({}, planted) is None


def test_what_cannot_be_read_gets_no_twins():
    assert _canaries.plant("print 'x'\n", {"test_x"}, set()) == ("print 'x'\n", [])


def test_what_is_too_long_is_shown_from_both_ends():
    shown = repository.shortened("a" * 1000 + "b" * 1000, 100)
    assert shown == "a" * 50 + "\n... 1900 characters left out ...\n" + "b" * 50


@installed
@pytest.mark.parametrize(
    ("lines", "code", "resolved"),
    [
        (["PASSED t.py::test_new", "PASSED t.py::test_old"], 0, True),
        (["FAILED t.py::test_new - x", "PASSED t.py::test_old"], 1, False),
        (["PASSED t.py::test_new", "PASSED t.py::test_old"], 1, False),
        ([], 0, False),
    ],
)
def test_the_benchmark_grades_a_log(lines, code, resolved):
    text = "\n".join([_evaluation.START, *lines, _evaluation.END, f"{_evaluation.EXIT_CODE}: {code}", ""])
    report = _grading.Grader(ROW).report("diff", text)
    assert report["a__b-1"]["resolved"] is resolved
