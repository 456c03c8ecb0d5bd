"""Limits of agents, outcomes, comparisons and benchmarks of other packages, through the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from aenv.cli.main import main

PLUGIN = """
from aenv.bench import agent_bridge
from aenv.bench.base import Benchmark, NoSolution, Result
from aenv.errors import Unavailable
from aenv.sdk.environment import Environment


class Counting(Benchmark):
    name = "counting"
    summary = "Count to three."
    agents = {"gold": "counts", "CMD": "a program"}
    options = {}

    def tasks(self):
        return ["one", "two", "hopeless"]

    async def run(self, job):
        result = Result(job.task)
        if job.agent == "gold":
            if job.task == "hopeless":
                raise NoSolution("hopeless: no solution is known")
            result.reward = 1.0
            return result
        if job.agent == "burning":
            raise Unavailable("the machine is on fire")
        async with Environment("everything") as env:
            await agent_bridge.run_agent(job, env, "Call echo.", result)
            result.reward = float(len(result.calls))
        return result
"""
AGENT = """
import json, os, sys, urllib.request
for number in range(int(sys.argv[1])):
    request = urllib.request.Request(os.environ["AENV_TASK_URL"] + "/tools/echo", b'{"content": "x"}')
    print(json.load(urllib.request.urlopen(request))["data"])
while len(sys.argv) > 2:
    __import__("time").sleep(60)
"""


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package with a benchmark, as pip would install it."""
    site = tmp_path / "site"
    (site / "counting_bench-1.0.dist-info").mkdir(parents=True)
    (site / "counting_bench.py").write_text(PLUGIN)
    about = site / "counting_bench-1.0.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-bench\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[aenv.benchmarks]\ncounting = counting_bench:Counting\nbroken = no_such_module:Nothing\n"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    yield
    sys.modules.pop("counting_bench", None)


@pytest.fixture
def agent(tmp_path: Path) -> str:
    """A program that calls a tool as often as its argument says; with a second one, it never ends."""
    (tmp_path / "agent.py").write_text(AGENT)
    return f"{sys.executable} {tmp_path / 'agent.py'}"


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main(["bench", *arguments, "--output", "json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from aenv.testing import running
    from tests.conftest import ENVS

    with running(ENVS / "everything.py", log=tmp_path / "log") as server:
        monkeypatch.setenv("AENV_INSTANCE_URL", server.url)
        yield server


def results(summary: Any) -> dict[str, tuple[Any, Any, Any]]:
    return {each["task"]: (each["reward"], each["outcome"], each["fault"]) for each in summary["results"]}


def test_benchmarks_of_other_packages_are_listed_and_a_broken_one_harms_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, rows = bench(capsys, "list")
    summaries = {row["name"]: row["summary"] for row in rows}
    assert summaries["counting"] == "Count to three."
    assert "cannot be loaded: ModuleNotFoundError" in summaries["broken"]
    assert "terminal" in summaries


def test_a_task_without_a_known_solution_is_no_failure_of_the_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, summary = bench(capsys, "run", "counting", "--agent", "gold")
    assert code == 0
    assert results(summary)["hopeless"] == (None, "no_solution", "caller")
    assert (summary["graded"], summary["faults"], summary["without_solution"]) == (2, 0, 1)
    assert summary["outcomes"] == {"graded": 2, "no_solution": 1}
    code, summary = bench(capsys, "run", "counting", "--agent", "burning", "--run", str(tmp_path / "burning"))
    assert (code, summary["faults"]) == (1, 3)
    assert results(summary)["one"] == (None, "failed", "infra")


def test_an_agent_is_stopped_at_its_budget_of_steps_and_graded(
    capsys: pytest.CaptureFixture[str], served: Any, agent: str, tmp_path: Path
) -> None:
    (tmp_path / "limits.json").write_text('{"two": {"steps": 4}, "hopeless": {"steps": 9}}')
    limits = ("--budget-steps", "2", "--limits", str(tmp_path / "limits.json"))
    code, summary = bench(capsys, "run", "counting", "--agent", f"{agent} 4", *limits)
    assert code == 0
    assert results(summary) == {
        "one": (2.0, "budget", "timeout"), "two": (4.0, "graded", None), "hopeless": (4.0, "graded", None),
    }  # fmt: skip


def test_an_agent_is_stopped_at_its_time_limit_and_graded(
    capsys: pytest.CaptureFixture[str], served: Any, agent: str
) -> None:
    options = ("--timeout", "3", "--limit", "1", "--budget-steps", "5")
    code, summary = bench(capsys, "run", "counting", "--agent", f"{agent} 0 forever", *options)
    assert code == 0
    assert results(summary) == {"one": (0.0, "timeout", "timeout")}


def test_an_agent_that_fails_is_told_apart_from_the_machine(capsys: pytest.CaptureFixture[str], served: Any) -> None:
    _, summary = bench(capsys, "run", "counting", "--agent", "exit 3", "--limit", "1")
    assert results(summary) == {"one": (None, "agent_failed", "caller")}


def test_two_runs_are_compared_task_by_task(
    capsys: pytest.CaptureFixture[str], served: Any, agent: str, tmp_path: Path
) -> None:
    runs = [str(tmp_path / name) for name in ("first", "second")]
    bench(capsys, "run", "counting", "--agent", f"{agent} 3", "--run", runs[0])
    bench(capsys, "run", "counting", "--agent", "gold", "--run", runs[1])
    code, found = bench(capsys, "compare", *runs)
    assert code == 0
    assert (found["compared"], found["better"], found["worse"], found["equal"]) == (2, 0, 2, 0)
    assert (found["mean_rewards"], found["mean_difference"]) == ([3.0, 1.0], -2.0)
    assert found["not_compared"] == ["hopeless"]
    assert main(["bench", "compare", *runs]) == 0
    assert "second is better on 0, worse on 2, equal on 0" in capsys.readouterr().out
    assert main(["bench", "compare", runs[0], str(tmp_path / "none")]) == 2


@pytest.mark.parametrize("text", ["[]", '{"one": {"seconds": 3}}', '{"one": {"steps": 0}}', "no JSON"])
def test_invalid_limits_are_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    (tmp_path / "limits.json").write_text(text)
    assert main(["bench", "run", "counting", "--limits", str(tmp_path / "limits.json")]) == 2
    assert "limits.json" in capsys.readouterr().err
