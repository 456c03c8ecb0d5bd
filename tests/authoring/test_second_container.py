"""Commands in a second container: its agent is run by this machine's shell, on a folder in place of a volume."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aenv.authoring import second_container
from aenv.authoring.second_container import AGENT, REQUESTS, VARIABLE, SecondContainer
from aenv.errors import EnvironmentTimeoutError, Unavailable
from tests.waiting import wait_while


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    made = tmp_path / "shared"
    made.mkdir()
    return made


@pytest.fixture
def second(shared: Path) -> Iterator[SecondContainer]:
    variables = {"PATH": os.environ["PATH"], VARIABLE: str(shared)}
    agent = subprocess.Popen(["/bin/sh", "-c", AGENT], env=variables, start_new_session=True)
    try:
        yield SecondContainer(str(shared))
    finally:
        agent.kill()
        agent.wait()


def test_a_command_returns_its_output_and_exit_code(second: SecondContainer) -> None:
    done = second.run("echo out; echo err >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr, done.truncated) == (3, "out\n", "err\n", False)


def test_folder_variables_and_input_reach_the_command(second: SecondContainer, tmp_path: Path) -> None:
    done = second.run('pwd; echo "$WORD"; cat', cwd=str(tmp_path), env={"WORD": "it's $HOME"}, stdin=b"given")
    assert done.stdout == f"{tmp_path}\nit's $HOME\ngiven"
    assert second.run("true", cwd="/no/such/folder").exit_code == 126


def test_an_async_function_runs_commands_as_well(second: SecondContainer) -> None:
    assert asyncio.run(second.run_async("echo hello")).stdout == "hello\n"


def test_many_commands_run_at_the_same_time(second: SecondContainer) -> None:
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: second.run(f"echo {number}"), range(24)))
    assert [each.stdout for each in done] == [f"{number}\n" for number in range(24)]


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(second: SecondContainer, shared: Path) -> None:
    with pytest.raises(EnvironmentTimeoutError, match="within 3 s"):
        second.run(f"sleep 3600 & echo $! > {shared}/pid; wait", timeout=3)
    assert second.run("echo on").stdout == "on\n"
    pid = int((shared / "pid").read_text())
    wait_while(lambda: Path(f"/proc/{pid}").exists() and _state(pid) not in "ZX", "the command goes on")


def test_nothing_is_left_of_a_command(second: SecondContainer, shared: Path) -> None:
    second.run("echo hello")
    assert [path.name for path in (shared / REQUESTS).iterdir()] == ["requests"]


def test_long_output_is_cut_off(second: SecondContainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_container, "MOST_OUTPUT", 1000)
    done = second.run("head -c 5000 /dev/zero | tr '\\0' x")
    assert (len(done.stdout), done.truncated) == (1000, True)


def test_a_link_in_place_of_the_output_reveals_nothing(second: SecondContainer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the main container")
    done = second.run(f"cd $(dirname $0); rm -f stdout; ln -s {tmp_path}/secret stdout")
    assert (done.exit_code, done.stdout) == (0, "")


def test_an_exit_code_that_is_none_is_not_taken_for_success(second: SecondContainer, shared: Path) -> None:
    forge = f"here=$(ls -d {shared}/{REQUESTS}/*/); rm -f $here/code; mkdir $here/code; exit 0"
    with pytest.raises(Unavailable, match="did not say"):
        second.run(forge)


def test_without_a_second_container_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(Unavailable, match="podTemplate dualContainer"):
        second_container.second_container()
    monkeypatch.setattr(second_container, "START_SECONDS", 0.1)
    monkeypatch.setenv(VARIABLE, str(shared))
    with pytest.raises(Unavailable, match="did not answer"):
        second_container.second_container().run("true")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"
