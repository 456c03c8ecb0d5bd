"""What can be told without a repository, and the benchmark's own grading, where that is installed."""

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


def test_the_benchmarks_script_gets_the_paths_of_this_instance_and_tells_the_exit_status():
    text = _evaluation.script(ROW)
    assert "miniconda" not in text
    assert f"cd {repository.TESTBED}" in text
    assert text.index("TEST_EXIT_CODE=$?") < text.index(_evaluation.END) < text.index(f'echo "{_evaluation.EXIT_CODE}')


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
