"""Episodes of benchmarks that a rollout recorded replay to the same results and reward."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from aenv.bench.built_in import Tau2
from aenv.bench.task_sets import BuiltInTasks
from aenv.cli.main import main
from aenv.errors import UsageError
from aenv.rollout import Episode, rollout
from aenv.rollout.replays import replay_task
from aenv.trajectory import TrajectoryStore
from tests.conftest import run
from tests.isolation.host import Platform
from tests.rollout.conftest import results_of
from tests.tau2_stand_in import ENV

HARBOR = Path(__file__).parent / "tasks" / "harbor"

pytestmark = pytest.mark.usefixtures("sandboxes", "shared_threads", "shared_cache")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrajectoryStore]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with TrajectoryStore.open() as opened:
        yield opened


def test_an_episode_of_a_terminal_task_replays(
    store: TrajectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def agent(episode: Episode) -> None:
        await episode.call("execute_command", command="echo one > notes.txt; cat notes.txt; cat missing.txt")
        await episode.call("execute_command", command="wc -c < notes.txt")

    [solved] = results_of(rollout(tasks=HARBOR / "greet", agent="gold", store=store, retries=0))
    [idle] = results_of(rollout(tasks=HARBOR / "greet", agent=agent, store=store, retries=0))
    assert (solved.reward, idle.reward) == (1.0, 0.0)
    for result in (solved, idle):
        report = run(replay_task(store.events(result.episode), HARBOR / "greet"))
        assert report.equal, report
        assert (report.reward, report.graded) == (result.reward, True)
        assert report.compared == report.calls
    assert main(["trajectory", "replay", idle.episode]) == 0  # the run says which tasks it had
    assert "all results are the recorded ones" in capsys.readouterr().out
    target = tmp_path / "test_greet.py"
    assert main(["trajectory", "to-test", idle.episode, str(target)]) == 0
    assert str(HARBOR / "greet") in target.read_text()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(target)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_episode_of_tau2_replays(store: TrajectoryStore, tmp_path: Path, platform: Platform) -> None:
    project = tmp_path / "shop.py"
    project.write_text(ENV)

    class StandIn(Tau2):
        """The benchmark with one task, in an environment with its functions."""

        env = str(project)

        def tasks(self) -> Sequence[str]:
            return ["1"]

    async def agent(episode: Episode) -> None:
        await episode.call("refund", order="W1")

    [result] = results_of(rollout(tasks=BuiltInTasks(StandIn({})), agent=agent, store=store, retries=0))
    assert (result.outcome, result.score) == ("ok", 1.0), result
    report = run(replay_task(store.events(result.episode), BuiltInTasks(StandIn({}))))
    assert report.equal, report
    assert report.reward["total_reward"] == 1.0


@pytest.mark.skipif(
    importlib.util.find_spec("tau2_bench_data") is None,
    reason="TAU2-Bench is not installed here: AENV_TAU2_SOURCE=CHECKOUT python envs/tau2-env/install.py",
)
@pytest.mark.parametrize("domain", ["mock", "retail"])
def test_an_episode_of_the_installed_tau2_replays(
    store: TrajectoryStore, platform: Platform, capsys: pytest.CaptureFixture[str], domain: str
) -> None:
    source = f"tau2?domain={domain}"
    [result] = results_of(rollout(tasks=source, agent="gold", store=store, limit=1, retries=0))
    assert (result.outcome, result.score) == ("ok", 1.0), result
    assert main(["trajectory", "replay", result.episode]) == 0
    assert "all results are the recorded ones" in capsys.readouterr().out


def test_a_set_without_the_task_is_refused(store: TrajectoryStore) -> None:
    events = [{"kind": "begin", "seq": 0, "at": 0.0, "task": {"id": "other"}}]
    with pytest.raises(UsageError, match="has no task 'other'"):
        run(replay_task(events, HARBOR / "greet"))
