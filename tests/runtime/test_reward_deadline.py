"""The time limit of a reward: agent code that uses it up costs the agent its grade, and slow author's code does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aenv import current_call, register_reward, run_python
from aenv.authoring.declarations import Registry
from tests.conftest import afetch, run, served

FOREVER = "def solve():\n    while True:\n        pass"


def one_after_another() -> float:
    for _ in range(100):
        run_python(FOREVER, call="solve", timeout=0.2)
    return 1.0


def one_that_hangs() -> float:
    run_python(FOREVER, call="solve", timeout=4.0)
    return 1.0


def in_threads_of_its_own() -> float:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: run_python(FOREVER, call="solve", timeout=4.0), range(2)))
    return 1.0


async def in_async_code() -> float:
    await asyncio.to_thread(one_that_hangs)
    return 1.0


def ask(registry: Registry, query: str) -> tuple[int, Any]:
    async def talk() -> Any:
        async with served(registry) as url:
            return await afetch(url, f"/task/reward{query}", {})

    status, body = run(talk())
    return status, body


@pytest.mark.attack("grading")
@pytest.mark.parametrize("reward", [one_after_another, one_that_hangs, in_threads_of_its_own, in_async_code])
def test_agent_code_that_uses_up_the_time_is_the_agents_fault(registry: Registry, reward: Callable[[], Any]) -> None:
    register_reward(name="graded")(reward)
    began = time.monotonic()
    status, body = ask(registry, "?timeout=3")
    assert (status, body["code"], body["fault"]) == (409, "state_destroyed", "policy")
    assert body["error"] == "code of the agent has used up the 3 s that the reward had"
    assert time.monotonic() - began >= 2.0


def test_slow_author_code_is_waited_for_and_blames_nobody(registry: Registry) -> None:
    @register_reward(name="slow")
    def slow() -> float:
        time.sleep(2.0)  # the work that this test is about: much longer than the time limit
        run_python("pass", timeout=0.01)
        return 1.0

    assert ask(registry, "?timeout=0.3")[1] == {"success": True, "data": 1.0}


def test_a_reward_knows_how_long_it_has(registry: Registry) -> None:
    register_reward(name="left")(lambda: {"left": current_call().seconds_left})
    assert 0 < ask(registry, "?timeout=600")[1]["data"]["left"] <= 598
    for query in ("", "?timeout=soon", "?timeout=-1", "?timeout=nan", "?timeout=inf"):
        assert ask(registry, query)[1]["data"]["left"] is None
