"""Tasks that an environment declares, as the SDK lists them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aenv import Environment, Task, register_tasks
from aenv.authoring.declarations import Registry
from aenv.errors import FunctionFailed, InvalidArguments, NotFound
from tests.conftest import afetch, run, served


async def listed(registry: Registry, monkeypatch: pytest.MonkeyPatch, arguments: Any = None) -> list[Task]:
    async with served(registry) as url:
        monkeypatch.setenv("AENV_INSTANCE_URL", url)
        async with Environment("notes@1.0.0") as env:
            return await env.list_tasks(arguments)


def test_rows_become_tasks(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    @register_tasks
    def tasks() -> Iterator[dict[str, Any]]:
        yield {"id": 1, "prompt": "add", "answer": 3, "variables": {"A": "1"}}
        yield {
            "id": "two",
            "instruction": "sub",
            "setup": {"function": "reset", "arguments": {"seed": 2}},
            "limits": {"steps": 4},
        }

    first, second = run(listed(registry, monkeypatch))
    assert (first.id, first.instruction, first.hidden) == ("1", "add", {"answer": 3})
    assert (second.id, second.limits.steps, second.setup and second.setup.function) == ("two", 4, "reset")


def test_an_async_generator_with_parameters_lists_a_split(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    @register_tasks
    async def tasks(split: str = "train") -> AsyncIterator[Task]:
        yield Task(id=split, instruction="do it")

    assert [task.id for task in run(listed(registry, monkeypatch, {"split": "test"}))] == ["test"]


def test_many_tasks_come_in_pages_and_are_listed_once(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    @register_tasks
    def tasks() -> list[dict[str, Any]]:
        calls.append(1)
        return [{"id": f"t{number}"} for number in range(2500)]

    assert [task.id for task in run(listed(registry, monkeypatch))] == [f"t{number}" for number in range(2500)]
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a"}, {"id": "a"}], "two tasks have the id 'a'"),
        ([{"id": "a", "limits": {"steps": 0}}], "task 0: limits.steps"),
        (["a"], "task 0 is str"),
    ],
)
def test_a_wrong_row_is_the_authors_fault(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, rows: list[Any], message: str
) -> None:
    register_tasks(lambda: rows)
    with pytest.raises(FunctionFailed, match=message):
        run(listed(registry, monkeypatch))


def test_an_environment_without_tasks_says_so(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="declares no tasks"):
        run(listed(registry, monkeypatch))


def test_an_invalid_page_is_refused(registry: Registry) -> None:
    register_tasks(lambda: [{"id": "a"}])

    async def ask() -> tuple[int, Any]:
        async with served(registry) as url:
            return await afetch(url, "/task/list?start=x", {})

    status, answer = run(ask())
    assert (status, answer["code"]) == (422, InvalidArguments.code)


def test_an_environment_has_one_list_of_tasks(registry: Registry) -> None:
    register_tasks(lambda: [])
    with pytest.raises(ValueError, match="only one list of tasks"):
        register_tasks(print)


def test_agents_see_neither_answers_nor_solutions() -> None:
    task = Task.of_row({"id": "a", "answer": 3, "reward": {"arguments": {"x": 1}}, "solution": [{"tool": "add"}]})
    assert task.public() == Task(id="a")
