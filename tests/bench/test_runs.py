"""The runner and its result files, with a fake benchmark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aenv.bench import registry
from aenv.bench.base import BenchJob, Benchmark, Result
from aenv.bench.runner import grade_all, run_all
from aenv.bench.runs import BenchRun, RunRequest
from aenv.cli.main import main
from aenv.errors import Unavailable, UsageError
from tests.conftest import run


class MadeUp(Benchmark):
    name = "made-up"
    summary = "Numbers."
    agents: ClassVar[Mapping[str, str]] = {"nop": "does nothing"}
    options: ClassVar[Mapping[str, str]] = {"broken": "names of tasks that cannot be run, with commas"}
    ran: ClassVar[list[str]] = []
    at_once: ClassVar[int] = 0
    most: ClassVar[int] = 0

    def tasks(self) -> Sequence[str]:
        return ["one", "two/a", "three"]

    async def run(self, job: BenchJob) -> Result:
        MadeUp.ran.append(job.task)
        MadeUp.at_once += 1
        MadeUp.most = max(MadeUp.most, MadeUp.at_once)
        await asyncio.sleep(0)
        MadeUp.at_once -= 1
        if job.task in self.given.get("broken", "").split(",") and not (job.folder / "mended").exists():
            raise Unavailable("the machine is on fire")
        return Result(job.task, 1.0 if job.agent == "good" else 0.0)

    async def grade(self, job: BenchJob) -> Result:
        return Result(job.task, 0.5)

    def nothing(self) -> Mapping[str, float]:
        return {"one": 0.0, "two/a": 1.0, "three": 0.0}


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(registry.BENCHMARKS, "made-up", (f"{__name__}:MadeUp", "Numbers."))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("aenv.bench.registry.kind", lambda name: MadeUp)
    MadeUp.ran = []
    MadeUp.most = 0


def begun(place: Path, **options: str) -> BenchRun:
    return BenchRun.begin(place, RunRequest("made-up", "good", options, nothing=dict(MadeUp({}).nothing())))


def ran(run_: BenchRun, parallel: int = 1) -> dict[str, Any]:
    run(run_all(MadeUp(run_.request.options), run_, parallel=parallel, progress=lambda *_: None))
    return run_.summary()


def test_an_infra_fault_gives_no_reward_and_is_run_again(tmp_path: Path) -> None:
    summary = ran(begun(tmp_path / "run", broken="three"))
    assert (summary["graded"], summary["faults"], summary["mean_reward"]) == (2, 1, 1.0)
    broken = next(result for result in summary["results"] if result["task"] == "three")
    assert (broken["reward"], broken["fault"], broken["error"]) == (None, "infra", "the machine is on fire")
    (tmp_path / "run/tasks/three/mended").touch()
    MadeUp.ran = []
    summary = ran(BenchRun.open(tmp_path / "run"))
    assert MadeUp.ran == ["three"]
    assert (summary["graded"], summary["faults"], summary["mean_reward"]) == (3, 0, 1.0)


def test_the_reward_of_doing_nothing_is_shown_for_the_same_tasks(tmp_path: Path) -> None:
    assert ran(begun(tmp_path / "run"))["do_nothing"] == pytest.approx(1 / 3)
    assert ran(begun(tmp_path / "two", broken="two/a"))["do_nothing"] == 0.0


@pytest.mark.parametrize("parallel", [1, 2, 8])
def test_the_number_of_parallel_tasks_is_limited(tmp_path: Path, parallel: int) -> None:
    ran(begun(tmp_path / "run"), parallel)
    assert MadeUp.most == min(parallel, 3)


def test_a_run_is_resumed_only_with_the_same_options(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    assert begun(tmp_path / "run").path == tmp_path / "run"
    with pytest.raises(UsageError, match="started with other options"):
        begun(tmp_path / "run", broken="one")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(UsageError, match="not empty"):
        begun(tmp_path / "other")


def test_finished_tasks_can_be_graded_again(tmp_path: Path) -> None:
    ran(begun(tmp_path / "run"))
    run(grade_all(MadeUp({}), BenchRun.open(tmp_path / "run"), ["one"], parallel=1, progress=lambda *_: None))
    assert {r.task: r.reward for r in BenchRun.open(tmp_path / "run").results()} == {
        "one": 0.5,
        "two/a": 1.0,
        "three": 1.0,
    }
    with pytest.raises(UsageError, match="no task 'four'"):
        run(grade_all(MadeUp({}), BenchRun.open(tmp_path / "run"), ["four"], parallel=1, progress=lambda *_: None))


def test_the_command_prints_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "run", "made-up", "--agent", "good", "--run", str(tmp_path / "run")]
    assert main([*words, "-O", "broken=one"]) == 1
    out, err = capsys.readouterr()
    assert "mean reward 1 over 2 graded of 3" in out
    assert "doing nothing gets 0.5 on the same tasks" in out
    assert "1 without a reward are not counted" in out
    assert "no reward (infra): the machine is on fire" in err
    (tmp_path / "run/tasks/one/mended").touch()
    assert main(["bench", "resume", str(tmp_path / "run"), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_reward"] == 1.0
    assert main(["bench", "grade", str(tmp_path / "run"), "--task", "one"]) == 0
    assert main(["bench", "run", "made-up", "--limit", "1"]) == 0
    capsys.readouterr()
    assert main(["bench", "show"]) == 0
    assert "1 of 1" in capsys.readouterr().out
    assert main(["bench", "run", "made-up", "-O", "speed=9"]) == 2
    assert "no option 'speed'" in capsys.readouterr().err
    assert main(["bench", "show", "nowhere"]) == 2
