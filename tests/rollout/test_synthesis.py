"""Synthesised tasks: proposed, checked and run in real sandboxes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aenv import __version__
from aenv.cli.commands.evaluate.synth import command
from aenv.errors import UsageError
from aenv.rollout import ScriptedModel, rollout
from aenv.rollout.agents.scripted import scripted
from aenv.rollout.synthesis import Synthesis
from aenv.rollout.synthesis.call_shapes import shape_of, shapes_of
from aenv.rollout.synthesis.call_values import Values, bad_arguments, fits
from aenv.rollout.synthesis.instructions import instruction_of
from aenv.rollout.synthesis.synthesis_run import GENERATOR
from aenv.rollout.synthesis.task_dataset import Dataset
from aenv.schema.tasks import TaskStep
from aenv.sdk.state_check import differing_paths, same
from aenv.trajectory import TrajectoryStore
from aenv.trajectory.replay import replay
from tests.conftest import run
from tests.isolation.host import Platform
from tests.rollout.conftest import results_of
from tests.waiting import wait_while

LIBRARY = str(Path(__file__).parent / "library")
SCHEMAS = {"mkdir": {"required": ["name"]}, "touch": {"required": ["name"]}}


def _steps(*calls: tuple[str, dict[str, Any]]) -> list[TaskStep]:
    return [TaskStep(tool=tool, arguments=arguments) for tool, arguments in calls]


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("synthesis") / "tasks"


@pytest.mark.long
def test_a_dataset_runs_with_gold_1_and_nop_0(folder: Path, platform: Platform, store: TrajectoryStore) -> None:
    given = [LIBRARY, "--out", str(folder), "--count", "5", "--length", "3", "--solver", "gold", "--solver", "nop"]
    made = CliRunner().invoke(command, given)
    assert made.exit_code == 0, made.output
    rows = _rows(folder)
    assert len(rows) == 5
    tasks = str(folder / "tasks.jsonl")
    for agent, score in (("gold", 1.0), ("nop", 0.0)):
        results = results_of(rollout(LIBRARY, agent=agent, tasks=tasks, store=store, concurrency=4, run=agent))
        assert {result.score for result in results} == {score}
    events = [list(store.events(episode.id)) for episode in store.all_episodes("gold")]
    assert run(replay(events[0])).same_reward

    # the clock is ignored; a tool that changes something only after others observes nothing; the card says all of it
    probes = [probe for row in rows for probe in row["reward"]["state"]]
    assert {"value/time"} == {path for probe in probes for path in probe.get("ignore", ())}
    assert {probe["tool"] for probe in probes} <= {"overview", "find_book"}
    tools = {tuple(sorted(step["tool"] for step in row["solution"])) for row in rows}
    assert len(tools) == len(rows)
    card = (folder / "card.md").read_text()
    assert "| solved by gold | 5 of 5 |\n| solved by nop | 0 of 5 |" in card
    assert (
        f"| version | {json.loads(Path(LIBRARY, 'config.json').read_text())['version']} |\n| digest | sha256:" in card
    )
    assert f"| generator | aenv {__version__}, generator {GENERATOR} |\n| seed | 0 |" in card
    assert "5 tasks (5 were asked for)" in card
    assert "| expire | unknown | none found | none exist |" in card
    assert "| close_day | changes state |" in card


def test_a_finished_dataset_is_not_made_again(folder: Path, platform: Platform) -> None:
    before = (folder / "provenance.jsonl").read_bytes()
    with (folder / "provenance.jsonl").open("ab") as file:
        file.write(b'{"number": 99')  # what a crash in the middle of a line leaves
    summary = run(Synthesis(LIBRARY, folder, count=5, length=3).run())
    assert summary["tasks"] == 5
    assert (folder / "provenance.jsonl").read_bytes() == before
    with pytest.raises(UsageError, match="another seed"):
        run(Synthesis(LIBRARY, folder, count=5, length=3, seed=1).run())


def _decisions(folder: Path) -> list[Any]:
    """Return all decisions, without observations: these contain the time."""
    found = []
    for entry in Dataset(folder, {}).entries:
        task = entry.get("task") or {}
        probes = [(probe.get("tool"), probe.get("arguments")) for probe in task.get("reward", {}).get("state", ())]
        found.append({**entry, "task": (task.get("instruction"), task.get("solution"), probes)})
    return found


def _kill_after(batches: int, given: list[str], folder: Path) -> None:
    """Run the command, and kill it when so many batches are decided."""
    journal = folder / "provenance.jsonl"

    def goes_on() -> bool:
        return process.poll() is None and (not journal.exists() or journal.read_text().count('{"batch"') < batches)

    with subprocess.Popen([sys.executable, "-m", "aenv.cli", "synth", *given], stdout=subprocess.DEVNULL) as process:
        wait_while(goes_on, "no batch was decided")
        process.kill()


@pytest.mark.long
def test_a_killed_synthesis_goes_on_and_decides_as_one_that_was_not_killed(platform: Platform, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    summary = run(Synthesis(LIBRARY, whole, count=10, length=4, seed=3).run())
    assert summary["tasks"] == 10
    given = [LIBRARY, "--out", str(killed), "--count", "10", "--length", "4", "--seed", "3"]
    _kill_after(1, given, killed)
    again = CliRunner().invoke(command, given)
    assert again.exit_code == 0, again.output
    assert _decisions(killed) == _decisions(whole)
    assert [row["solution"] for row in _rows(killed)] == [row["solution"] for row in _rows(whole)]


def test_a_reward_of_the_environment_can_grade_the_tasks(
    platform: Platform, tmp_path: Path, store: TrajectoryStore
) -> None:
    reward = {"name": "shelved", "arguments": {"books": {"observe": {"tool": "overview", "path": "books"}}}}
    made = Synthesis(LIBRARY, tmp_path / "out", count=2, length=2, seed=1, reward=json.dumps(reward))
    assert run(made.run())["tasks"] == 2
    rows = _rows(tmp_path / "out")
    assert {row["reward"]["name"] for row in rows} == {"shelved"}
    assert all(set(row["reward"]["arguments"]["books"]) >= {"dune", "emma"} for row in rows)
    assert "graded by the environment's own reward `shelved`" in (tmp_path / "out" / "card.md").read_text()
    results = results_of(rollout(LIBRARY, agent="gold", tasks=rows, store=store, concurrency=3))
    assert {result.reward for result in results} == {1.0}
    with pytest.raises(UsageError, match="invalid reward"):
        Synthesis(LIBRARY, tmp_path, reward={"nmae": "shelved"})


def test_a_tool_to_exclude_that_does_not_exist_is_refused(platform: Platform, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tool or function 'lendd' to exclude"):
        run(Synthesis(LIBRARY, tmp_path, exclude=["lendd"]).run())
    corrected = Synthesis(LIBRARY, tmp_path, count=1, exclude=["lend"])
    assert run(corrected.run())["tasks"] == 1  # the folder holds nothing yet that was made in another way
    assert corrected.progress.instances > 0


def test_tools_are_not_made_to_wait_for_long() -> None:
    rng = random.Random(0)
    schema = {"properties": {"max_seconds": {"type": "number"}, "wait": {"type": "integer", "minimum": 2}}}
    values = Values()
    values.add({"seconds": 600, "wait": 600})
    for _ in range(20):
        assert values.arguments("nap", schema, rng, optional=1.0) == {"max_seconds": 0.1, "wait": 3}


def test_the_state_check_grades_other_ways_to_the_same_state(platform: Platform, store: TrajectoryStore) -> None:
    expected = {"value": {"books": {"dune": "ann", "emma": "shelf", "ulysses": "shelf"}, "members": ["ann"], "time": 0}}
    task = {
        "id": "one",
        "instruction": "Lend Dune to Ann.",
        "reward": {"state": [{"tool": "overview", "ignore": ["value/time"], "expected": expected}]},
    }
    detour = [
        ("lend", {"book": "dune", "member": "ann"}),
        ("close_day", {}),
        ("lend", {"book": "dune", "member": "ann"}),
    ]
    rewards = []
    for calls, score in ((detour, 1.0), (detour[:1], 1.0), (detour[:2], 0.0)):
        [result] = results_of(rollout(LIBRARY, agent=scripted(calls), tasks=[task], store=store))
        assert (result.outcome, result.score) == ("ok", score)
        [state] = [event for event in store.events(result.episode) if event["kind"] == "state"]
        assert state["digest"] == result.reward["state"]
        report = run(replay(store.events(result.episode)))
        assert report.equal
        assert report.reward == result.reward
        rewards.append(result.reward)
    assert rewards[0] == rewards[1]
    assert rewards[2]["different"] == ["overview"]
    assert rewards[2]["state"] != rewards[0]["state"]


def test_a_model_proposes_tasks_and_votes_on_them(platform: Platform, tmp_path: Path) -> None:
    proposals = iter([
        {"instruction": "Sign up Bob, and lend him Emma.", "calls": [
            {"tool": "join", "arguments": {"member": "bob"}},
            {"tool": "lend", "arguments": {"book": "emma", "member": "bob"}},
        ]},
        {"instruction": "Burn it.", "calls": [{"tool": "burn", "arguments": {}}]},
        {"instruction": "Show all.", "calls": [{"tool": "overview", "arguments": {}}]},
        "no JSON",
        {"instruction": "Lend what is not there.", "calls": [
            {"tool": "lend", "arguments": {"book": "ilias", "member": "ann"}},
        ]},
    ])  # fmt: skip

    def script(messages: Any, tools: Any) -> str:
        if "reviewer" in messages[0]["content"]:
            return json.dumps({"accept": "Bob" in messages[1]["content"]})
        return json.dumps(next(proposals, {}))

    made = Synthesis(LIBRARY, tmp_path / "out", count=1, length=3, model=ScriptedModel(script), committee=3)
    summary = run(made.run())
    entries = Dataset(tmp_path / "out", {}).entries
    reasons = {len(entry["proposed"]) and entry["proposed"][0]["tool"]: entry.get("rejected") for entry in entries
               if entry.get("source") == "model"}  # fmt: skip
    assert reasons["join"] is None
    assert reasons["burn"] == "schema"
    assert reasons["overview"] == "no effect"
    [row] = _rows(tmp_path / "out")
    assert row["instruction"] == "Sign up Bob, and lend him Emma."
    assert summary["model"]["requests"] > 3


def test_an_environment_whose_tools_change_nothing_is_refused(platform: Platform, tmp_path: Path) -> None:
    exclude = ("join", "lend", "close_day", "buy", "expire", "find_book")
    with pytest.raises(UsageError, match="no tool of this environment changes anything"):
        run(Synthesis(LIBRARY, tmp_path, exclude=exclude).run())


def test_sequences_that_differ_by_parameters_order_or_repetition_are_duplicates() -> None:
    one = shapes_of(_steps(("mkdir", {"name": "a"}), ("touch", {"name": "b"})), SCHEMAS)
    assert one & shapes_of(_steps(("touch", {"name": "x"}), ("mkdir", {"name": "x"})), SCHEMAS)
    repeated = _steps(("mkdir", {"name": "a"}), ("mkdir", {"name": "c"}), ("touch", {"name": "b"}))
    assert one & shapes_of(repeated, SCHEMAS)
    assert one & shapes_of(_steps(("mkdir", {"name": "a", "parents": True}), ("touch", {"name": "b"})), SCHEMAS)
    assert not one & shapes_of(_steps(("mkdir", {"name": "a"})), SCHEMAS)


def test_programs_and_optional_arguments_are_part_of_the_shape_of_a_call() -> None:
    def shape(**arguments: Any) -> tuple[str, ...]:
        return shape_of(_steps(("run", arguments)), {"run": {"required": ["command"]}})

    assert shape(command="sort a | uniq > b") == shape(command="sort c | uniq > d") == ("run() sort uniq",)
    assert len({shape(command="sort a"), shape(command="rm a"), shape(command="rm a", shell="two")}) == 3


def test_instructions_read_like_requests_and_name_every_value() -> None:
    descriptions = {
        "lend": "Lend a book to a member.",
        "write_file": "Write a file, and make the folders on the way to it.",
        "close": "End a terminal, and what runs in it.",
        "run": "Run a command in a bash: its state stays.",
    }
    schemas = {"close": {"properties": {"terminal": {"type": "string", "default": "main"}}}}
    steps = _steps(
        ("lend", {"book": "emma", "member": "ann"}),
        ("write_file", {"path": "a.txt", "content": "one\n", "append": True}),
        ("close", {}),
        ("run", {"command": "ls", "shell": "two"}),
    )
    text = instruction_of(steps, descriptions, schemas)
    for part in (
        'lend the book "emma" to the member "ann"',
        'write a file at "a.txt" containing the line "one" after what is already there',
        'end the terminal "main"',
        'run the command `ls` in the shell "two"',
    ):
        assert part in text


def test_observations_are_compared_without_the_paths_to_ignore() -> None:
    one = {"value": {"entries": [{"name": "a", "modified": 1}]}}
    other = {"value": {"entries": [{"name": "a", "modified": 2}]}}
    assert differing_paths(one, other) == {"value/entries/*/modified"}
    assert same(one, other, ["value/entries/*/modified"])
    assert not same(one, other)
    assert not same(one, {"value": {"entries": []}}, ["value/entries/*/modified"])


def test_arguments_are_compared_with_the_schema() -> None:
    schema = {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x"], "type": "string"}}, "required": ["a"]}
    assert fits({"a": 1, "b": "x"}, schema)
    for wrong in ({}, {"a": "1"}, {"a": True}, {"a": 1, "b": "y"}, {"a": 1, "c": 2}):
        assert not fits(wrong, schema)
    assert bad_arguments(schema) == {}
    assert bad_arguments({"properties": {}}) is None
