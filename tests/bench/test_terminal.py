"""Tasks in both formats, on this machine's system, without downloads."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aenv.bench.base import Result
from aenv.bench.runner import grade_all, run_all
from aenv.bench.runs import BenchRun, RunRequest
from aenv.bench.terminal.benchmark import TerminalBench
from aenv.cli.main import main
from aenv.errors import ConfigError, UsageError
from aenv.isolation.limits.cgroups import sweep
from tests.bench.debian import a_debian
from tests.conftest import run
from tests.waiting import wait_while

__all__ = ["a_debian"]

TASKS = Path(__file__).parent / "tasks"
HARBOR, FIRST = TASKS / "harbor", TASKS / "first"

pytestmark = pytest.mark.usefixtures("sandboxes", "shared_cache")


@pytest.fixture(autouse=True)
def _nothing_left() -> Any:
    """Check that no process of a box and no mount is left."""
    yield
    mounts = Path("/proc/self/mounts").read_text()
    assert "aenv-box-" not in mounts
    assert not list(Path("/sys/fs/cgroup").glob(f"*/aenv-bench-{os.getpid()}-*"))
    assert not _boxes()


def _boxes() -> list[str]:
    """Return the mounts of this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        if int(parent) == os.getpid() and "aenv.images.container" in command:
            found.append(command)
    return found


def results(place: Path, agent: str, tasks: Path, **options: str) -> dict[str, Result]:
    begun = BenchRun.begin(place, RunRequest("terminal", agent, {"tasks": str(tasks), **options}))
    run(run_all(TerminalBench(begun.request.options), begun, parallel=2, progress=lambda *_: None))
    return {result.task: result for result in begun.results()}


@pytest.mark.long
def test_the_solution_gets_one_and_doing_nothing_gets_zero_in_both_formats(tmp_path: Path) -> None:
    for tasks in (HARBOR, FIRST):
        only = {"only": "greet,serve"} if tasks == HARBOR else {}
        good = results(tmp_path / f"{tasks.name}-oracle", "oracle", tasks, **only)
        nothing = results(tmp_path / f"{tasks.name}-nop", "nop", tasks, **only)
        assert {task: result.reward for task, result in good.items()} == dict.fromkeys(good, 1.0), good
        assert {task: result.reward for task, result in nothing.items()} == dict.fromkeys(good, 0.0), nothing
        for result in good.values():
            assert {"build", "agent", "verifier", "all"} <= set(result.seconds)
            assert result.calls[0]["returncode"] == 0


CHEATS = {
    "other tests": "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' | tee /tests/test.sh > /tests/check.py",
    "a reward": """mkdir -p /logs/verifier; cd /logs/verifier
echo 1 > reward.txt; echo '{"reward": 1}' > reward.json""",
    "a daemon": """cat > /app/daemon.sh <<'EOF'
while :; do
  mkdir -p /logs/verifier /tests
  echo 1 > /logs/verifier/reward.txt
  echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh
  echo 'raise SystemExit(0)' > /tests/check.py
  sleep 0.005
done
EOF
setsid bash /app/daemon.sh > /dev/null 2>&1 &
sleep 0.3""",
    "sitecustomize": """code='import os; os._exit(0)'
version=$(python3 -c 'import sys; print(f"python3.{sys.version_info[1]}")')
for folder in /root/.local/lib/$version/site-packages /app /usercode; do
  mkdir -p $folder; echo "$code" | tee $folder/sitecustomize.py $folder/usercustomize.py > /dev/null
done
echo 'export PYTHONPATH=/usercode' | tee -a /root/.bashrc /root/.profile /root/.bash_profile > /etc/environment
export PYTHONPATH=/usercode""",
    "links": """mkdir -p /app/l/verifier; echo 1 > /app/l/verifier/reward.txt
ln -s /app/l /logs; ln -s /app/t /tests""",
    "shadowed": """mkdir -p /root/.local/bin
printf '#!/bin/sh\\nexit 0\\n' | tee /root/.local/bin/python3; chmod 755 /root/.local/bin/python3""",
    "no verifier": "rm -rf /app/tools",
}


def test_cheating_earns_nothing(tmp_path: Path) -> None:
    for number, script in enumerate(CHEATS.values()):
        task = tmp_path / "tasks" / f"cheat-{number}"
        shutil.copytree(HARBOR / "greet", task)
        (task / "solution/solve.sh").write_text(f"{script}\nexit 0\n")
    found = results(tmp_path / "run", "oracle", tmp_path / "tasks")
    assert {result.calls[0]["returncode"] for result in found.values()} == {0}
    rewards = {name: found[f"cheat-{number}"].reward for number, name in enumerate(CHEATS)}
    assert rewards == dict.fromkeys(CHEATS, 0.0)
    broken = found[f"cheat-{list(CHEATS).index('no verifier')}"]
    assert "not on the files of the agent" in broken.error


def test_a_verifier_that_cannot_start_gives_no_reward(tmp_path: Path) -> None:
    found = results(tmp_path / "run", "oracle", HARBOR, only="unstartable")["unstartable"]
    assert (found.reward, found.fault) == (None, "infra")
    assert "the verifier could not start" in found.error
    assert "no-such-runner: command not found" in found.error


def test_the_state_of_a_task_can_be_graded_again(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    shutil.copytree(HARBOR, tasks)
    options = {"tasks": str(tasks), "only": "greet,serve"}
    found = results(tmp_path / "run", "oracle", tasks, only="greet,serve")
    assert found["greet"].reward == 1
    (tasks / "greet/tests/test.sh").write_text("echo 0.25 > /logs/verifier/reward.txt\n")
    again = BenchRun.open(tmp_path / "run")
    run(grade_all(TerminalBench(options), again, ["greet"], parallel=1, progress=lambda *_: None))
    assert {result.task: result.reward for result in again.results()} == {"greet": 0.25, "serve": 1.0}
    run(grade_all(TerminalBench(options), again, ["serve"], parallel=1, progress=lambda *_: None))
    gone = next(result for result in again.results() if result.task == "serve")
    assert (gone.reward, gone.error) == (None, "serve was graded with running servers, which have ended")


def test_an_agent_that_takes_too_long_is_stopped_and_graded(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "slow"
    shutil.copytree(HARBOR / "greet", task)
    (task / "task.toml").write_text((task / "task.toml").read_text().replace("60.0", "1.0", 1))
    (task / "solution/solve.sh").write_text("./tools/say > greeting.txt; sleep 1000\n")
    found = results(tmp_path / "run", "oracle", task)["slow"]
    assert (found.reward, found.fault) == (1.0, "timeout")
    assert "was stopped" in found.error


def test_a_failing_build_step_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "broken"
    shutil.copytree(HARBOR / "greet", task)
    (task / "environment/Dockerfile").write_text("FROM aenv/host\nRUN (sleep 1000 &) ; echo so far; exit 7\n")
    found = results(tmp_path / "run", "oracle", task)["broken"]
    assert found.reward is None
    assert "line 2: RUN (sleep 1000 &) ; echo so far; exit 7 ended with exit code 7:\nso far" in found.error
    (task / "environment/Dockerfile").write_text("FROM registry.example.com/some/image:1\n")
    found = results(tmp_path / "other", "oracle", task)["broken"]
    assert "only debian, ubuntu and python images can be built without Docker" in found.error


def test_the_command_runs_a_folder_of_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AENV_TERMINAL_TASKS", str(TASKS))
    words = ["bench", "terminal", "--tasks", "first", "--agent", "oracle", "--run", str(tmp_path / "run"), "-o", "json"]
    assert main(words) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["mean_reward"], summary["results"][0]["outputs"]["passed"]) == (1.0, 1.0)
    assert main(["bench", "terminal", "--tasks", "nowhere"]) == 3
    assert main(["bench", "terminal", "--tasks", "harbor", "--only", "grete"]) == 2
    assert main(["bench", "terminal", "--tasks", "harbor", "--network", "open sesame"]) == 2


def test_an_incomplete_task_is_rejected(tmp_path: Path) -> None:
    task = tmp_path / "task"
    shutil.copytree(HARBOR / "greet", task)
    shutil.rmtree(task / "tests")
    with pytest.raises(ConfigError, match="missing: tests"):
        TerminalBench({"tasks": str(task)}).tasks()
    with pytest.raises(ConfigError, match="no tasks in"):
        TerminalBench({"tasks": str(task / "solution")}).tasks()
    with pytest.raises(UsageError, match="no tasks given"):
        TerminalBench({}).tasks()


def test_a_program_on_this_machine_solves_the_task_with_the_sdk(tmp_path: Path) -> None:
    agent = shlex.join([sys.executable, str(Path(__file__).with_name("agent.py"))])
    found = results(tmp_path / "run", agent, HARBOR, only="greet")["greet"]
    assert found.reward == 1.0, (found, (tmp_path / "run/tasks/greet/agent.log").read_text())
    assert {call["tool"] for call in found.calls} == {"execute_command", "keystrokes", "capture_pane"}
    crashed = results(tmp_path / "crash", f"{agent} --crash", HARBOR, only="greet")["greet"]
    assert (crashed.reward, crashed.fault) == (None, "caller")
    assert "the agent ended with exit code 3" in crashed.error


def test_no_process_outlives_a_killed_run(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "asleep"
    shutil.copytree(HARBOR / "greet", task)
    (task / "solution/solve.sh").write_text("setsid sleep 98765 &\nsleep 98765\n")
    words = ["bench", "terminal", "--tasks", str(task), "--agent", "oracle", "--run", str(tmp_path / "run")]
    with subprocess.Popen([sys.executable, "-m", "aenv.cli", *words], stderr=subprocess.DEVNULL) as process:
        wait_while(lambda: len(_named("sleep\0" + "98765\0")) != 2, "the programs of the task do not run", 120)
        process.kill()
    wait_while(lambda: _named("sleep\0" + "98765\0"), "programs of the task are left")

    def groups_left() -> list[Path]:
        sweep("aenv-bench")
        return list(Path("/sys/fs/cgroup").glob(f"*/aenv-bench-{process.pid}-*"))

    wait_while(groups_left, "control groups are left")


def _named(command: str) -> list[Path]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_text() == command:
                found.append(path)
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("a_debian")
@pytest.mark.timeout(600)
def test_replaced_programs_of_the_verifier_earn_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Debian image, where the agent can change the whole system; the image is kept in the user's cache."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    cheats = {
        "shadowed": "printf '#!/bin/sh\\necho hello\\n' > /usr/local/bin/cat; chmod 755 /usr/local/bin/cat",
        "replaced": "printf '#!/bin/sh\\necho hello\\n' > /tmp/cat; chmod 755 /tmp/cat; mv /tmp/cat /usr/bin/cat",
        "linked": "rm -rf /usr/local/bin; mkdir /x; printf '#!/bin/sh\\necho hello\\n' > /x/cat; chmod 755 /x/cat;"
        "ln -s /x /usr/local/bin",
        "honest": "echo hello > greeting.txt",
    }
    for name, script in cheats.items():
        task = tmp_path / "tasks" / name
        shutil.copytree(HARBOR / "greet", task)
        (task / "environment/Dockerfile").write_text("FROM debian:bookworm-slim\nWORKDIR /app\n")
        (task / "solution/solve.sh").write_text(f"{script}\n")
        (task / "tests/test.sh").write_text(
            'if [ "$(cat /app/greeting.txt)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
        )
    begun = BenchRun.begin(tmp_path / "run", RunRequest("terminal", "oracle", {"tasks": str(tmp_path / "tasks")}))
    asyncio.run(run_all(TerminalBench(begun.request.options), begun, parallel=2, progress=lambda *_: None))
    rewards = {result.task: result.reward for result in begun.results()}
    assert rewards == {"shadowed": 0.0, "replaced": 0.0, "linked": 0.0, "honest": 1.0}


REWARD = "/logs/verifier/reward.txt"
IMPOSTOR = f"""mkfifo /tmp/wait
(until [ -s {REWARD} ]; do :; done; echo 1 > {REWARD}; echo > /tmp/wait) &
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "reward"),
    [
        (f"{IMPOSTOR}echo 0 > {REWARD}\ncat /tmp/wait\n", 0.0),
        (f"set -eu\n{IMPOSTOR}if false; then :\nelse\n  echo 0 > {REWARD}\n  cat /tmp/wait\nfi\nexit 3\n", 0.0),
        (f"echo 0 > {REWARD}\necho 1 > {REWARD}\n", 1.0),
        (f"echo 0 > {REWARD}\nbash -c 'echo 1 > {REWARD}'\n", 1.0),
        (f"echo 0 > {REWARD}\nprintf '%s' 0.5 > {REWARD}; exit 3\n", 0.5),
    ],
)
def test_a_reward_of_0_cannot_be_overwritten_by_another_program(tmp_path: Path, script: str, reward: float) -> None:
    """A program that the tests have run cannot change the reward afterwards."""
    task = tmp_path / "tasks" / "rewritten"
    shutil.copytree(HARBOR / "greet", task)
    (task / "tests" / "test.sh").write_text(script)
    found = results(tmp_path / "run", "nop", task)["rewritten"]
    assert found.reward == reward, found
