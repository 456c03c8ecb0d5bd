"""Episodes of `aenv bench` are recorded, and replay to the same results and reward."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.bench.base import Result
from aenv.bench.built_in import BuiltInBenchmark
from aenv.bench.runner import run_all
from aenv.bench.runs import BenchRun, RunRequest
from aenv.bench.task_sets import BuiltInTasks
from aenv.cli.main import main
from aenv.rollout.replays import replay_task
from aenv.trajectory import EpisodeSummary, TrajectoryStore
from tests.bench.test_rollouts import SOURCE
from tests.conftest import run
from tests.isolation.host import Platform, own_platform, start_shared_threads

HARBOR = Path(__file__).parent / "tasks" / "harbor"
PROGRAM = """
import json, os, sys, time, urllib.request
for text in sys.argv[1:]:
    body = json.dumps({"text": text}).encode()
    answer = urllib.request.urlopen(urllib.request.Request(os.environ["AENV_TASK_URL"] + "/tools/say", body))
    if json.load(answer)["data"]["is_error"]:
        time.sleep(600)
"""
"""Says words, and does not end when it may not."""

pytestmark = pytest.mark.usefixtures("sandboxes")


@pytest.fixture(scope="module", autouse=True)
def _blocking_calls() -> None:
    start_shared_threads()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "cache-of-boxes"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with own_platform() as started:
        yield started


@pytest.fixture
def colours(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _no_settings_from_outside: None
) -> type[BuiltInBenchmark]:
    """A benchmark of two tasks, in an environment of its own."""
    for name, value in platform.variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "colours.py").write_text(SOURCE)

    class Colours(BuiltInBenchmark):
        name = "colours"
        summary = "Say a colour."
        env = str(tmp_path / "colours.py")
        listing = "list_tasks"

        def variables(self, task: str) -> dict[str, str]:
            return {"COLOUR": task}

    return Colours


def results(benchmark: BuiltInBenchmark, begun: BenchRun) -> dict[str, Result]:
    run(run_all(benchmark, begun, parallel=2, progress=lambda *_: None))
    return {result.task: result for result in begun.results()}


def recorded(begun: BenchRun) -> tuple[list[EpisodeSummary], dict[str, list[Any]]]:
    with TrajectoryStore.open(begun.trajectories) as store:
        episodes = sorted(store.all_episodes(), key=lambda episode: (episode.task, episode.attempt))
        return episodes, {episode.id: list(store.events(episode.id)) for episode in episodes}


def test_an_episode_of_a_run_replays_to_the_same_results_and_reward(
    colours: type[BuiltInBenchmark], tmp_path: Path
) -> None:
    begun = BenchRun.begin(tmp_path / "run", RunRequest("colours", "gold"))
    found = results(colours({}), begun)
    assert {task: (result.reward, result.outcome) for task, result in found.items()} == {
        "red": (1.0, "graded"), "blue": (1.0, "graded"),
    }  # fmt: skip
    assert found["red"].outputs["do_nothing"] == 0.0
    assert found["red"].calls == [{"tool": "say", "arguments": {"text": "red"}, "result": "red", "is_error": False}]
    assert {"start", "agent", "grade", "all"} <= set(found["red"].seconds)
    episodes, events = recorded(begun)
    assert [(episode.task, episode.outcome, episode.score) for episode in episodes] == [
        ("blue", "ok", 1.0), ("red", "ok", 1.0),
    ]  # fmt: skip
    report = run(replay_task(events[episodes[0].id], BuiltInTasks(colours({}))))
    assert report.equal, report
    assert report.reward["score"] == 1.0


def test_a_task_that_is_run_again_is_another_attempt(colours: type[BuiltInBenchmark], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    agent = f"test $AENV_TASK = red || test -e {tmp_path / 'mended'} || exit 3; " + shlex.join(
        [sys.executable, str(tmp_path / "program.py"), "red", "red"]
    )
    begun = BenchRun.begin(tmp_path / "run", RunRequest("colours", agent, limits={"steps": 1}))
    found = results(colours({}), begun)
    assert (found["red"].reward, found["red"].outcome, found["red"].fault) == (1.0, "budget", "timeout")
    assert found["red"].error == "the agent used up its budget of 1 tool calls and was stopped"
    assert (found["blue"].reward, found["blue"].outcome, found["blue"].fault) == (None, "agent_failed", "caller")
    assert [call["tool"] for call in found["red"].calls] == ["say"]
    (tmp_path / "mended").touch()
    found = results(colours({}), begun)
    assert (found["blue"].reward, found["blue"].outcome) == (0.0, "budget")
    episodes, _ = recorded(begun)
    assert [(each.task, each.attempt, each.outcome, each.score) for each in episodes] == [
        ("blue", 0, "policy", None), ("blue", 1, "timeout", 0.0), ("red", 0, "timeout", 1.0),
    ]  # fmt: skip


def test_a_function_can_be_the_agent(colours: type[BuiltInBenchmark], tmp_path: Path) -> None:
    (tmp_path / "said.py").write_text("async def agent(episode):\n    await episode.call('say', text='blue')\n")
    request = RunRequest("colours", f"{tmp_path / 'said.py'}:agent", {"tasks": "blue"})
    found = results(colours(request.options), BenchRun.begin(tmp_path / "run", request))
    assert found["blue"].reward == 1.0


def test_a_recorded_run_of_a_terminal_task_is_shown_and_replayed_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "run"
    words = ["bench", "terminal", "--tasks", str(HARBOR), "--only", "greet", "--agent", "oracle"]
    assert main([*words, "--run", str(place), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_reward"] == 1.0
    store = ["--store", str(place / "trajectories")]
    assert main(["trajectory", "list", *store, "-o", "json"]) == 0
    [episode] = json.loads(capsys.readouterr().out)
    assert main(["trajectory", "show", episode["id"], *store]) == 0
    assert "execute_command" in capsys.readouterr().out
    assert main(["trajectory", "replay", episode["id"], *store, "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["equal"], report["graded"], report["reward"], report["compared"]) == (True, True, 1.0, 2)
