"""The template of `aenv init -t world`: its checks notice a broken world, and rollouts grade it by state."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aenv.project import scaffold
from aenv.rollout import EpisodeResult, rollout
from aenv.trajectory import TrajectoryStore
from aenv.trajectory.replay import replay
from tests.conftest import run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return scaffold.create("desk", template="world", parent_dir=tmp_path).root


def checks(project: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


def change(project: Path, edit: Any) -> None:
    file = project / "private" / "scenario.json"
    scenario = json.loads(file.read_text())
    edit(scenario)
    file.write_text(json.dumps(scenario))


async def results(project: Path, agent: str, store: Path) -> list[EpisodeResult]:
    return [result async for result in rollout(str(project), agent=agent, store=store, concurrency=2)]


def test_solutions_get_1_doing_nothing_gets_0_and_a_replay_is_exact(
    sandboxes: None, project: Path, tmp_path: Path
) -> None:
    async def main() -> tuple[list[EpisodeResult], list[EpisodeResult], bool]:
        solved = await results(project, "gold", tmp_path / "records")
        idle = await results(project, "nop", tmp_path / "records")
        with TrajectoryStore.open(tmp_path / "records") as store:
            events = list(store.events(solved[0].episode))
        return solved, idle, (await replay(events)).equal

    solved, idle, exact = run(main())
    assert [(result.outcome, result.score) for result in solved] == [("ok", 1.0)] * 4
    assert [(result.outcome, result.score) for result in idle] == [("ok", 0.0)] * 4
    assert exact


def test_a_world_of_another_schema_works_with_the_same_code(project: Path) -> None:
    (project / "src" / "schema.sql").write_text(
        "CREATE TABLE rooms (name TEXT PRIMARY KEY, seats INTEGER NOT NULL CHECK (seats > 0), price REAL);"
    )
    world = project / "src" / "world.py"
    lines = world.read_text().split('offer_reads("people"')
    kept = lines[1][lines[1].index("@register_function") :]
    world.write_text(lines[0] + 'offer_reads("rooms")\noffer_writes("rooms")\n\n\n' + kept)
    scenario = {
        "rows": {"rooms": [{"name": "blue", "seats": 4, "price": 2.5}, {"name": "red", "seats": 2, "price": None}]},
        "tasks": [
            {
                "id": "all",
                "instruction": "Replace the red room by a green one with 3 seats, and make the blue one free.",
                "solution": [
                    {"tool": "find_rooms", "arguments": {}},
                    {"tool": "insert_rooms", "arguments": {"name": "green", "seats": 3}},
                    {"tool": "update_rooms", "arguments": {"name": "blue", "clear": ["price"]}},
                    {"tool": "delete_rooms", "arguments": {"name": "red"}},
                ],
            }
        ],
        "refused": [
            {"tool": "insert_rooms", "arguments": {"name": "blue", "seats": 1}},
            {"tool": "insert_rooms", "arguments": {"name": "huge", "seats": 2**70}},
            {"tool": "update_rooms", "arguments": {"name": "blue", "clear": ["seats"]}},
            {"tool": "update_rooms", "arguments": {"name": "blue", "clear": ["floor"]}},
            {"tool": "delete_rooms", "arguments": {"name": "pink"}},
        ],
    }
    (project / "private" / "scenario.json").write_text(json.dumps(scenario))
    tests = project / "tests" / "test_world.py"
    tests.write_text(tests.read_text().partition("\n\ndef test_a_query_of_a_check")[0])
    done = checks(project)
    assert done.returncode == 0, done.stdout


def solved_from_the_start(scenario: dict[str, Any]) -> None:
    scenario["rows"]["tickets"][1]["assignee"] = 3


def solution_that_is_refused(scenario: dict[str, Any]) -> None:
    scenario["tasks"][0]["solution"][2]["arguments"]["assignee"] = 1


def tool_without_a_call(scenario: dict[str, Any]) -> None:
    del scenario["tasks"][2]


@pytest.mark.parametrize("edit", [solved_from_the_start, solution_that_is_refused, tool_without_a_call])
def test_its_checks_fail_for_a_broken_world(project: Path, edit: Any) -> None:
    change(project, edit)
    done = checks(project)
    assert done.returncode != 0, done.stdout
