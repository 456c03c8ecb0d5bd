"""Tasks with several containers: boxes that share only a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from aenv.bench.base import Result
from aenv.bench.runner import run_all
from aenv.bench.runs import BenchRun, RunRequest
from aenv.bench.terminal.benchmark import TerminalBench
from aenv.bench.terminal.compose import read
from aenv.errors import ConfigError
from tests.conftest import run

TOML = "[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n[environment]\nallow_internet = {internet}\n"
COMPOSE = """
services:
  main:
    depends_on: [store]
    environment:
      - STORE=http://store:8000
  store:
    build: ./store
    environment: {{WORD: hello}}
    healthcheck:
      test: ["CMD-SHELL", "{health}"]
"""
SERVED = "bash -c ': < /dev/tcp/localhost/8000'"
STORE = """FROM aenv/host
WORKDIR /data
COPY serve.sh .
ENTRYPOINT ["/bin/sh", "serve.sh"]
CMD ["8000"]
"""
SOLVE = """
[ -e /data ] && exit 1
python3 - <<'END' > /app/greeting.txt
import os, urllib.request
print(urllib.request.urlopen(os.environ["STORE"] + "/word.txt").read().decode(), end="")
END
"""
TEST = """
python3 - <<'END'
import pathlib, urllib.request
wanted = urllib.request.urlopen("http://store:8000/word.txt").read().decode()
found = pathlib.Path("/app/greeting.txt")
reward = int(found.is_file() and wanted == found.read_text() == "hello")
pathlib.Path("/logs/verifier/reward.txt").write_text(str(reward))
END
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandboxes: None) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "tasks" / "asks"
    for name, text in {
        "task.toml": TOML.format(internet="true"),
        "instruction.md": "Ask the store.",
        "environment/Dockerfile": "FROM aenv/host\nWORKDIR /app\n",
        "environment/docker-compose.yaml": COMPOSE.format(health=SERVED),
        "environment/store/Dockerfile": STORE,
        "environment/store/serve.sh": 'printf "$WORD" > word.txt; exec python3 -m http.server "$1"\n',
        "solution/solve.sh": SOLVE,
        "tests/test.sh": TEST,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def result(task: Path, place: Path, agent: str) -> Result:
    begun = BenchRun.begin(place, RunRequest("terminal", agent, {"tasks": str(task)}))
    run(run_all(TerminalBench(begun.request.options), begun, parallel=1, progress=lambda *_: None))
    (found,) = begun.results()
    return found


@pytest.mark.parametrize("internet", ["true", "false"])
def test_services_run_for_the_agent_and_for_the_tests(task: Path, tmp_path: Path, internet: str) -> None:
    (task / "task.toml").write_text(TOML.format(internet=internet))
    good = result(task, tmp_path / "good", "oracle")
    assert (good.reward, good.calls[0]["returncode"]) == (1.0, 0), good
    nothing = result(task, tmp_path / "nothing", "nop")
    assert nothing.reward == 0.0, nothing
    assert not (tmp_path / "good" / "tasks" / "asks" / "services").exists()


def test_a_service_that_ends_is_an_infra_fault(task: Path, tmp_path: Path) -> None:
    (task / "environment/store/serve.sh").write_text("echo no room; exit 3\n")
    (task / "environment/docker-compose.yaml").write_text(COMPOSE.format(health="false"))
    found = result(task, tmp_path / "run", "oracle")
    assert (found.reward, found.fault) == (None, "infra")
    assert "store has ended with exit code 3:\nno room" in found.error


@pytest.mark.parametrize(
    ("services", "why"),
    [
        ({"db": {"image": "x", "volumes": ["a:/b"]}}, "volumes of the service db"),
        ({"db": {"build": "../other"}}, "outside of its task"),
        ({"db": {}}, "neither an image nor a build"),
        ({"a": {"image": "x", "depends_on": ["b"]}, "b": {"image": "x", "depends_on": {"a": {}}}}, "depend on each"),
        (None, "has no services"),
    ],
)
def test_an_unsupported_compose_file_is_rejected(tmp_path: Path, services: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read({"services": services}, tmp_path, "main")


def test_a_compose_file_with_one_container_has_no_services(tmp_path: Path) -> None:
    volumes = ["${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}"]
    own = {"build": ".", "volumes": volumes, "environment": ["A=1"]}
    found = read({"services": {"client": own}}, tmp_path, "client")
    assert (found.services, found.variables) == ((), {})
