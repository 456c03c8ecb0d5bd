"""Whole episodes in sandboxes, as a trainer and an agent see them."""

import asyncio
from pathlib import Path

import pytest
from shop import tasks

from aenv import Environment, SyncEnvironment

PROJECT = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def env():
    with SyncEnvironment(PROJECT) as env:
        yield env


def test_results_have_schemas_and_plain_json_values(env):
    schemas = {tool["name"].split("/")[-1]: tool.get("outputSchema") for tool in env.list_tools()}
    assert set(schemas["forecast"]["properties"]) == {"product_id", "units", "weeks_of_stock"}
    assert env.call_tool("forecast", {"product_id": 3, "weeks": 2}).data == {
        "product_id": 3,
        "units": [20.0, 22.0],
        "weeks_of_stock": 0.29,
    }
    order = env.call_tool("find_customer", {"email": "alan@example.com"}).data["orders"][0]
    assert order == {"order_id": 1, "status": "open", "placed_at": "2026-03-02T09:00:00", "total": "24.5"}


def test_mistakes_of_the_agent_are_results_that_it_can_read(env):
    nobody = env.call_tool("place_order", {"customer_id": 9, "lines": [{"product_id": 1, "count": 1}]})
    assert (nobody.is_error, nobody.fault, nobody.text) == (True, None, "Not ordered: there is no customer 9.")
    wrong = env.call_tool("place_order", {"customer_id": 1, "lines": [{"product_id": 1, "count": 0}]})
    assert wrong.fault == "policy"
    assert "count" in wrong.text


def test_every_task_is_worth_nothing_at_first_and_one_when_it_is_solved():
    async def episode(env: Environment, task: dict) -> tuple[float, float]:
        await env.call_function("reset")
        before = await env.call_reward(task["reward"]["arguments"])
        for call in task["solution"]:
            result = await env.call_tool(call["tool"], call["arguments"])
            assert not result.is_error, result.text
        after = await env.call_reward(task["reward"]["arguments"])
        return before["score"], after["score"]

    async def all_of_them() -> list[tuple[float, float]]:
        every = list(tasks())
        async with Environment.batch(PROJECT, len(every)) as batch:
            return await asyncio.gather(*map(episode, await batch.all(), every))

    assert asyncio.run(all_of_them()) == [(0.0, 1.0)] * 3


def test_more_than_was_asked_for_is_not_what_was_wanted(env):
    env.call_function("reset")
    env.call_tool("restock", {"product_id": 3, "count": 80})
    env.call_tool("restock", {"product_id": 4, "count": 1})
    assert env.call_reward({"task": "restock"}) == {"score": 0.0, "wrong": ["stock"]}
