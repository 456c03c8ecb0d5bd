"""Checks of the world: they hold for any schema and scenario that you write."""

import json

import pytest
from database import database, scenario
from world import call, rows, tasks

from aenv import get_registry

SCENARIO = scenario()
TASKS = {task["id"]: task for task in tasks()}


@pytest.fixture(autouse=True)
def fresh_world():
    database.reset()


def state_differs(task):
    probes = task["reward"]["state"]
    return [probe for probe in probes if rows(**probe["arguments"]) != probe["expected"]["value"]]


def solve(task):
    return [call(step["tool"], step["arguments"]) for step in task["solution"]]


@pytest.mark.parametrize("id", TASKS)
def test_the_solution_passes_and_doing_nothing_fails(id):
    assert state_differs(TASKS[id])
    solve(TASKS[id])
    assert not state_differs(TASKS[id])


@pytest.mark.parametrize("id", TASKS)
def test_a_task_is_not_solved_by_the_solution_of_another(id):
    for other in TASKS.values():
        if other["id"] != id:
            database.reset()
            solve(other)
            assert state_differs(TASKS[id]), other["id"]


@pytest.mark.parametrize("id", TASKS)
def test_a_replay_is_exact(id):
    first = solve(TASKS[id])
    database.reset()
    assert solve(TASKS[id]) == first


@pytest.mark.parametrize("refused", SCENARIO["refused"], ids=json.dumps)
def test_a_call_against_the_rules_is_refused_and_changes_nothing(refused):
    queries = ["SELECT * FROM " + table for table in SCENARIO["rows"]]
    before = [rows(query) for query in queries]
    with pytest.raises(ValueError, match="Refused"):
        call(refused["tool"], refused["arguments"])
    assert [rows(query) for query in queries] == before


def test_every_tool_is_part_of_a_solution_and_every_write_is_refused_once():
    tools = set(get_registry().tools)
    assert {step["tool"] for task in TASKS.values() for step in task["solution"]} == tools
    writes = {tool for tool in tools if not tool.startswith("find_")}
    assert {each["tool"] for each in SCENARIO["refused"]} == writes


def test_a_query_of_a_check_cannot_change_the_world():
    with pytest.raises(Exception, match="readonly"):
        rows("DELETE FROM comments")
    assert call("find_comments", {}) == SCENARIO["rows"]["comments"]
