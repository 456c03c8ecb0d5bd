"""An honest agent: it looks, repairs, tests and commits, in a sandbox."""

from pathlib import Path

import pytest

from aenv import SyncEnvironment

PROJECT = str(Path(__file__).parents[1])
REPAIRED = (Path(PROJECT) / "commits/1_merge/intervals/merging.py").read_text()


@pytest.fixture
def env():
    with SyncEnvironment(PROJECT) as env:
        env.call_function("prepare")
        yield env


def run(env, command):
    return env.call_tool("shell", {"command": command, "timeout": 50}).data


def test_git_and_pytest_work_in_the_repository(env):
    assert run(env, "git log --format=%s")["output"].splitlines() == ["faster merge", "gaps", "merge"]
    assert "3 passed" in run(env, "python -m pytest -q")["output"]


def test_a_repair_that_is_written_by_hand_is_worth_one(env):
    env.call_tool("write_file", {"path": "intervals/merging.py", "content": REPAIRED})
    assert env.call_reward() == {"score": 1.0, "passed": 4, "tests": 4}


def test_half_a_repair_is_worth_nothing(env):
    half = REPAIRED.replace("max(merged[-1][1], end)", "end")
    env.call_tool("write_file", {"path": "intervals/merging.py", "content": half})
    assert env.call_reward() == {"score": 0.0, "passed": 2, "tests": 4}


def test_a_file_outside_of_the_repository_is_not_written(env):
    assert "not in the repository" in env.call_tool("write_file", {"path": "../x", "content": ""}).text


def test_a_command_that_takes_too_long_is_stopped(env):
    result = env.call_tool("shell", {"command": "sleep 1000", "timeout": 0.5}).data
    assert (result["exit_code"], result["timed_out"]) == (None, True)
