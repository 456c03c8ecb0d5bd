"""Which rewards are absent, and which are the environment's declared failure reward."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv import failure_reason
from aenv.errors import AEnvError, FunctionFailed, InstanceEnded
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import make_project
from tests.isolation.host import Platform, limited_by
from tests.waiting import wait_while

ENVIRONMENT = """
import subprocess
from pathlib import Path
from aenv import StateDestroyed, end_programs, register_reward, register_tool

Path("/app/ledger.txt").write_text("0")

@register_tool
def shell(command: str) -> int:
    return subprocess.run(["/bin/sh", "-c", command]).returncode

@register_tool
def grow(size: int) -> int:
    return len(b"x" * size)

@register_reward(name="balance")
def balance() -> float:
    try:
        return float(Path("/app/ledger.txt").read_text())
    except FileNotFoundError:
        raise StateDestroyed("the ledger is gone") from None

@register_reward(name="verified")
def verified() -> float:
    return float(subprocess.run(["/bin/sh", "-c", "echo 1"], capture_output=True).returncode == 0)

@register_reward(name="written")
def written() -> float:
    Path("/tmp/report").write_text("x" * 100_000)
    return 1.0

@register_reward(name="temporary")
def temporary() -> float:
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        return float(Path(folder, "x").write_text("1"))

@register_reward(name="alone")
def alone() -> float:
    end_programs()
    return float(Path("/app/ledger.txt").read_text() or 0)

@register_tool
def background(command: str) -> int:
    return subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True).pid

@register_reward(name="broken")
def broken() -> float:
    raise RuntimeError("the author's mistake")
"""


FULL = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
    except OSError:
        time.sleep(0.001)
"""


def declared(folder: Path, name: str, failure: Any) -> Path:
    project = make_project(folder, ENVIRONMENT, name=name, memory="192Mi", ephemeralStorage="16Mi")
    if failure is not None:
        config = json.loads((project / "config.json").read_text())
        (project / "config.json").write_text(json.dumps({**config, "failureReward": failure}))
    return project


@pytest.fixture(params=[None, -1.5, {"score": 0.0}], ids=["default", "number", "dict"])
def failure(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def env(tmp_path: Path, failure: Any, platform: Platform) -> Iterator[SyncEnvironment]:
    with SyncEnvironment(str(declared(tmp_path, "ledger", failure)), max_retries=0) as made:
        yield made


def is_declared(reward: Any, failure: Any) -> bool:
    return bool(reward == (0.0 if failure is None else failure))


def test_a_reward_that_was_computed_is_not_marked(env: SyncEnvironment) -> None:
    env.call_tool("shell", {"command": "echo 0.0 > /app/ledger.txt"})
    reward = env.call_reward(name="balance")
    assert reward == 0.0
    assert failure_reason(reward) is None


@pytest.mark.attack("grading")
def test_destroying_what_is_graded_gives_the_declared_failure_reward(env: SyncEnvironment, failure: Any) -> None:
    env.call_tool("shell", {"command": "rm -r /app/ledger.txt"})
    reward = env.call_reward(name="balance")
    assert is_declared(reward, failure)
    assert "the ledger is gone" in str(failure_reason(reward))


@pytest.mark.attack("grading")
def test_using_up_the_memory_gives_the_declared_failure_reward(
    env: SyncEnvironment, failure: Any, platform: Platform
) -> None:
    platform.processes()  # which notes what control groups there are
    if not limited_by(platform, "memory"):
        pytest.skip("without control groups, a process that asks for too much gets a MemoryError")
    with pytest.raises(InstanceEnded):
        env.call_tool("grow", {"size": 400 << 20})
    for _ in range(2):
        reward = env.call_reward(name="balance")
        assert is_declared(reward, failure)
        assert "memory" in str(failure_reason(reward))


@pytest.mark.attack("grading")
def test_filling_the_disk_gives_the_declared_failure_reward(env: SyncEnvironment, failure: Any) -> None:
    env.call_tool("shell", {"command": "cat /dev/zero > /app/full 2>/dev/null"})
    reward = env.call_reward(name="written")
    assert is_declared(reward, failure)
    assert "disk space" in str(failure_reason(reward))
    env.call_tool("grow", {"size": 1})
    env.call_tool("shell", {"command": "rm /app/full"})
    assert env.call_reward(name="written") == 1.0


@pytest.mark.attack("grading")
def test_using_up_all_processes_gives_the_declared_failure_reward(env: SyncEnvironment, failure: Any) -> None:
    env.call_tool("background", {"command": f"{sys.executable} -c '{FULL}'"})

    def refused() -> bool:
        return failure_reason(env.call_reward(name="verified")) is None

    wait_while(refused, "there are always more")
    reward = env.call_reward(name="verified")
    assert is_declared(reward, failure)
    assert "processes" in str(failure_reason(reward))


def test_a_reward_can_end_what_the_agent_left_running(env: SyncEnvironment) -> None:
    env.call_tool("background", {"command": "while :; do echo 1.0 > /app/ledger.txt; done"})
    env.call_tool("shell", {"command": "while [ $(cat /app/ledger.txt) != 1.0 ]; do :; done"})
    env.call_reward(name="alone")
    env.call_tool("shell", {"command": "echo 0.25 > /app/ledger.txt"})
    assert env.call_reward(name="alone") == 0.25


def test_the_authors_mistake_leaves_the_reward_absent(env: SyncEnvironment) -> None:
    with pytest.raises(FunctionFailed):
        env.call_reward(name="broken")


def test_an_end_from_outside_leaves_the_reward_absent(env: SyncEnvironment, platform: Platform, tmp_path: Path) -> None:
    env.call_tool("shell", {"command": "true"})
    for process in platform.instances_of(tmp_path / "ledger"):
        os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(AEnvError) as caught:
        env.call_reward(name="balance")
    assert caught.value.fault == "infra"


@pytest.mark.attack("grading")
@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("command", ["chmod 000 /tmp /var/tmp /app", "yes > /tmp/full; yes > /app/full"])
def test_closing_or_filling_the_place_for_temporary_files_gives_the_declared_failure_reward(
    tmp_path: Path, platform: Platform, used_before: bool, command: str
) -> None:
    with SyncEnvironment(str(declared(tmp_path, "ledger", -1.5)), max_retries=0) as env:
        if used_before:
            assert env.call_reward(name="temporary") == 1.0
        env.call_tool("shell", {"command": f"{command}; true"})
        reward = env.call_reward(name="temporary")
        assert (reward, failure_reason(reward) is not None) == (-1.5, True)


TALKATIVE = """
from aenv import register_function, register_reward, register_tool

@register_tool
def say(size: int) -> str:
    return "x" * size

@register_tool
def show(size: int) -> dict[str, str]:
    return {"shown": "\\x00" * size}

@register_function
def tell(size: int) -> str:
    return "x" * size

@register_reward
def reward() -> float:
    return 0.5
"""


@pytest.mark.attack("grading")
def test_a_result_that_is_too_long_is_an_error_of_the_tool_and_leaves_the_reward(
    tmp_path: Path, platform: Platform
) -> None:
    project = make_project(tmp_path, TALKATIVE, name="talkative", memory="2Gi")
    with SyncEnvironment(str(project), max_retries=0) as env:
        for tool, size in (("say", 70_000_000), ("show", 12_000_000)):
            result = env.call_tool(tool, {"size": size})
            assert (result.is_error, result.fault) == (True, "env")
            assert "at most" in result.text
        with pytest.raises(FunctionFailed, match="at most"):
            env.call_function("tell", {"size": 70_000_000})
        done = env.exec("head -c 9000000 /dev/zero; head -c 9000000 /dev/zero >&2")
        assert (done.exit_code, set(done.stdout), set(done.stderr)) == (0, {"\0"}, {"\0"})
        assert env.call_reward() == 0.5
