"""Recorded calls run again on a fresh instance, and as a test of their environment."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.cli.main import main
from aenv.errors import UsageError
from aenv.trajectory import EpisodeKey, TrajectoryStore
from aenv.trajectory.regression import write_test
from aenv.trajectory.replay import ReplayReport, environment_of, replay
from tests.conftest import run
from tests.trajectory.conftest import greet

HELLO = str(Path(__file__).parents[2] / "envs" / "hello-env")
COUNTER = '''
import os, time
from aenv import register_function, register_reward, register_tool

count = 0

@register_function
def start(at: int) -> int:
    global count
    count = at
    return count

@register_tool
def increment(by: int = 1) -> dict:
    """Add."""
    global count
    count += by
    return {"count": count}

@register_tool
def moment() -> str:
    """Tell the time."""
    return f"it is {time.time()} and count is {count}"

@register_tool
def fail() -> None:
    """Raise."""
    raise ValueError("broken")

@register_reward
def reward() -> float:
    return float(count)
'''

pytestmark = pytest.mark.usefixtures("platform")


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    folder = tmp_path / "counter"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "env.py").write_text(COUNTER)
    (folder / "config.json").write_text('{"name": "counter", "version": "1.0.0"}')
    return folder


def replayed(store: TrajectoryStore, id: str, *args: Any, **options: Any) -> ReplayReport:
    report = run(replay(store.events(id), *args, **options))
    assert isinstance(report, ReplayReport)
    return report


def record_counter(store: TrajectoryStore, counter: Path, calls: list[tuple[str, str, Any]]) -> str:
    """Record calls on a real instance, as a rollout does."""
    recorder = store.record(EpisodeKey("demo", "count"), {"environment": {"source": str(counter)}})

    async def episode() -> None:
        async with Environment(str(counter)) as env:
            for number, (of, name, arguments) in enumerate(calls):
                recorder.append("call", id=str(number), of=of, arguments=arguments, **{of: name})
                if of == "tool":
                    made = await env.call_tool(name, arguments)
                    recorder.append(
                        "result", id=str(number), content=made.content, structured=made.structured,
                        is_error=made.is_error, fault=made.fault,
                    )  # fmt: skip
                else:
                    value = await env.call_function(name, arguments)
                    recorder.append("result", id=str(number), content=[], structured=value, is_error=False)
            recorder.end("ok", await env.call_reward())

    run(episode())
    return recorder.episode_id


def test_a_recorded_episode_replays_to_the_same_results_and_reward(store: TrajectoryStore) -> None:
    report = replayed(store, greet(store, 0, "Hello Ada", 1.0), HELLO)
    assert report.equal
    assert (report.calls, report.compared, report.different) == (3, 3, 0)
    assert report.reward == {"score": 1.0, "said": 1}


def test_functions_tools_and_errors_replay(store: TrajectoryStore, counter: Path) -> None:
    calls = [
        ("function", "start", {"at": 5}),
        ("tool", "increment", {"by": 2}),
        ("tool", "fail", {}),
        ("tool", "no", {}),
    ]
    id = record_counter(store, counter, calls)
    report = replayed(store, id)
    assert report.equal
    assert (report.calls, report.reward, report.graded) == (4, 7.0, True)


def test_the_first_difference_and_the_reward_are_reported(store: TrajectoryStore, counter: Path) -> None:
    id = record_counter(
        store, counter, [("tool", "increment", {"by": 2}), ("tool", "increment", {}), ("tool", "increment", {})]
    )
    (counter / "src" / "env.py").write_text(COUNTER.replace("count += by", "count += by + (by == 1)"))
    report = replayed(store, id)
    assert not report.equal
    assert report.first is not None
    assert (report.different, report.first.call, report.first.seq) == (2, "tool increment", 3)
    assert (report.recorded_reward, report.reward) == (4.0, 6.0)


def test_what_changes_every_time_can_be_ignored(store: TrajectoryStore, counter: Path) -> None:
    id = record_counter(store, counter, [("tool", "moment", {})])
    assert not replayed(store, id).equal
    assert replayed(store, id, ignore=[r"\d+\.\d+"]).equal


def test_redacted_arguments_are_said(store: TrajectoryStore, counter: Path) -> None:
    recorder = store.record(
        EpisodeKey("demo", "t"), {"environment": {"source": str(counter)}}, secrets=["hush-hush-hush"]
    )
    recorder.append("call", id="1", of="tool", tool="increment", arguments={"by": "hush-hush-hush"})
    recorder.end("ok", 0.0)
    report = replayed(store, recorder.episode_id)
    assert report.redacted
    assert "redacted" in report.notes[0]


def test_the_command_reports_and_its_exit_code_tells(
    store: TrajectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = greet(store, 0, "Hello Ada", 1.0), greet(store, 1, "Go away", 1.0)
    assert main(["trajectory", "replay", good, "--env", HELLO]) == 0
    assert "all results are the recorded ones" in capsys.readouterr().out
    assert main(["trajectory", "replay", bad, "--env", HELLO, "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["first"]["call"] == "tool say"
    assert found["first"]["replayed"][0]["text"] == "Have we met?"
    assert (found["same_reward"], found["reward"]["score"]) == (False, 0.0)


@pytest.mark.long
def test_a_test_file_replays_and_fails_when_the_environment_changes(
    store: TrajectoryStore, counter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [("tool", "increment", {"by": 3}), ("tool", "increment", {"by": "\u2028 is a line end for some"})]
    id = record_counter(store, counter, calls)
    target = tmp_path / "tests" / "test_count.py"
    assert main(["trajectory", "to-test", id, str(target)]) == 0
    assert "test_count.jsonl" in capsys.readouterr().out

    def outcome() -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(target)]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=100)
        return done.returncode, done.stdout + done.stderr

    code, text = outcome()
    assert code == 0, text
    assert str(counter) not in target.read_text().partition("import")[2]  # both can be moved together
    (counter / "src" / "env.py").write_text(COUNTER.replace("float(count)", "float(count > 5)"))
    code, text = outcome()
    assert code == 1, text
    assert "reward 0.0: recorded 3.0" in text


def test_an_episode_without_an_environment_or_an_end_is_refused(store: TrajectoryStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no environment"):
        environment_of({"environment": {}})
    assert environment_of({"environment": {"name": "a", "version": "1"}}) == "a@1"
    assert environment_of({"environment": {"name": "a@2", "version": "1"}}) == "a@2"
    recorder = store.record(EpisodeKey("demo", "t"), {"environment": {"name": "x"}})
    assert store.episode(recorder.episode_id).state == "running"  # indexed, so that other processes see it
    assert main(["trajectory", "to-test", recorder.episode_id, str(tmp_path / "test_x.py")]) == 2
    recorder.end("cancelled")


@pytest.mark.attack("trajectory")
@pytest.mark.parametrize(
    "text",
    [
        '"""\nimport os\n"""',
        '\\"""',
        '""""',
        "x'\nimport os\n'",
        "{kind}",
        "f(): pass\nimport os\ndef g",
        "\0",
        "²",
        "\r",
    ],
)
def test_the_name_of_a_task_puts_no_code_into_a_test(store: TrajectoryStore, tmp_path: Path, text: str) -> None:
    recorder = store.record(EpisodeKey("demo", text))
    recorder.end("ok", 1.0)
    summary = store.episode(recorder.episode_id)
    events = store.events(recorder.episode_id)
    written, _ = write_test(tmp_path / "test_it.py", summary, events, environment=text, ignore=[text])
    kinds = [type(each).__name__ for each in ast.parse(written.read_text()).body]
    assert kinds == ["Expr", "ImportFrom", "ImportFrom", "Assign", "AnnAssign", "FunctionDef"]


@pytest.mark.attack("trajectory")
def test_an_imported_episode_does_not_choose_the_code_that_a_replay_runs(
    store_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project, mark = tmp_path / "evil.py", tmp_path / "ran"
    project.write_text(f"from pathlib import Path\nPath({str(mark)!r}).write_text('ran')\n" + COUNTER)
    begin = {
        "seq": 0, "at": 1.0, "kind": "begin", "episode": "ep-evil", "run": "r", "task": {"id": "t"}, "sample": 0,
        "attempt": 0, "environment": {"name": "evil", "source": str(project)},
    }  # fmt: skip
    end = {"seq": 1, "at": 2.0, "kind": "end", "outcome": "ok", "reward": None}
    for number, claim in enumerate(({}, {"imported": False}, {"imported": None})):
        file = tmp_path / f"{number}.jsonl"
        file.write_text("".join(f"{json.dumps(each)}\n" for each in ({**begin, **claim}, end)))
        assert main(["trajectory", "import", str(file), "--format", "events", "-o", "json"]) == 0
        [id] = json.loads(capsys.readouterr().out)
        for command in (["replay", id], ["to-test", id, str(tmp_path / "test_evil.py")]):
            assert main(["trajectory", *command]) == 2
            said = capsys.readouterr().err
            assert "was not recorded here" in said
            assert "--env" in said
    assert not mark.exists()
    assert not (tmp_path / "test_evil.py").exists()
    with TrajectoryStore.open() as store, pytest.raises(UsageError, match="imported"):
        run(replay(store.events(id)))
    assert main(["trajectory", "replay", id, "--env", HELLO]) == 0
