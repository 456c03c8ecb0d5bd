"""Plain unit tests: no server, no container."""

import asyncio
import signal

import pytest
import terminal_env
from grading import Tasks, grade

SUMMARY = "=========== short test summary info ============\n"
CHECK = f"""printf '{SUMMARY}'
echo 'PASSED tests/test_it.py::test_first'
grep -q 42 {{answer}} && echo 'PASSED tests/test_it.py::test_second' || echo 'FAILED tests/test_it.py::test_second - no'
"""


@pytest.fixture
def tasks(tmp_path):
    folder = tmp_path / "tasks" / "answer"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.yaml").write_text("instruction: x\nmax_test_timeout_sec: 20.0\n")
    (folder / "run-tests.sh").write_text("source $TEST_DIR/check.sh\n")
    (folder / "tests" / "check.sh").write_text(CHECK.format(answer=tmp_path / "answer.txt"))
    return Tasks(str(tmp_path / "tasks"), hide=True)


def test_the_tests_are_taken_out_of_sight(tasks, tmp_path):
    assert sorted(path.name for path in (tmp_path / "tasks" / "answer").iterdir()) == ["task.yaml"]


def test_every_test_counts_the_same(tasks, tmp_path):
    assert grade(tasks, "answer")["score"] == 0.5
    (tmp_path / "answer.txt").write_text("42\n")
    found = grade(tasks, "answer")
    assert (found["status"], found["score"], found["task_name"]) == ("success", 1.0, "answer")
    assert "test_second" in found["raw_output"]


def test_what_cannot_be_graded_says_why(tasks, tmp_path):
    assert "there are: answer" in grade(tasks, "other")["error"]
    silent = tmp_path / "more" / "silent"
    silent.mkdir(parents=True)
    (silent / "run-tests.sh").write_text("echo nothing\n")
    slow = tmp_path / "more" / "slow"
    slow.mkdir()
    (slow / "run-tests.sh").write_text("sleep 100\n")
    (slow / "task.yaml").write_text("max_test_timeout_sec: 0.2\n")
    more = Tasks(str(tmp_path / "more"), hide=False)
    assert (silent / "run-tests.sh").exists()
    assert grade(more, "silent")["status"] == "parse_error"
    assert grade(more, "slow")["status"] == "timeout"


def test_what_is_typed_is_done_and_shown():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background ignores it, for good

    async def play():
        await terminal_env.keystrokes("echo $((6 * 7))", append_enter=True)
        async with asyncio.timeout(30):
            while "\n42" not in await terminal_env.capture_pane(0.05):
                pass
        await terminal_env.keystrokes("sh -c 'echo read''y; exec sleep 1000'", append_enter=True)
        async with asyncio.timeout(30):
            while "\nready" not in await terminal_env.capture_pane(0.05):
                pass
        await terminal_env.keystrokes("C-c")
        await terminal_env.keystrokes("echo ba''ck", append_enter=True)
        async with asyncio.timeout(30):
            while "\nback" not in await terminal_env.capture_pane(0.05):
                pass
        found = await terminal_env.caculate_reward("nothing")
        assert found["status"] == "error"

    asyncio.run(play())
    for shell in terminal_env._shells:
        shell.wait(10)
