"""Environments whose packages come from PyPI, in real sandboxes, with nothing configured."""

from __future__ import annotations

from typing import Any

import pytest

from aenv import Environment
from aenv.client import local_lease
from tests.conftest import run


async def solve(env: Environment) -> None:
    """Do what the environment itself says solves it."""
    for step in await env.call_function("get_solution", {}):
        result = await env.call_tool(step["tool"], step["arguments"])
        assert not result.is_error, result.text


def test_what_existing_clients_of_the_weather_example_do_works() -> None:
    async def main() -> None:
        async with Environment("weather-demo@1.0.0") as env:
            assert [tool["name"] for tool in await env.list_tools()] == ["weather-demo@1.0.0/get_weather"]
            result = await env.call_tool("weather-demo@1.0.0/get_weather", {"city": "Beijing"})
            seen = await env.call_function("get_weather_func", {"city": "Beijing"})
            assert result.data == seen
            assert (seen["city"], seen["temperature"]) == ("Beijing", "20")
            assert await env.call_reward({"city": "Beijing"}) is True

    run(main())


def test_puzzles_of_many_kinds_are_asked_and_graded() -> None:
    kinds = ["arc_agi", "codeio", "game_of_life", "leg_counting", "prime_factorization", "sokoban", "zebra_puzzles"]

    async def main() -> None:
        async with Environment("reasoning-gym", environment_variables={"RG_DATASET": "sudoku", "RG_SEED": "7"}) as env:
            assert len(await env.call_function("list_datasets", {})) == 106
            question = (await env.call_tool("get_question", {})).data
            assert "Sudoku" in question
            assert (await env.call_reward({}))["score"] == 0.0
            await solve(env)
            assert (await env.call_reward({}))["score"] == 1.0
            for kind in kinds:
                task = await env.call_function("load_question", {"dataset": kind, "index": 2})
                assert task["instruction"] != question
                assert (await env.call_reward({"answer": "no idea"}))["score"] < 0.1
                await solve(env)
                assert (await env.call_reward({}))["score"] == 1.0

    run(main())


@pytest.mark.attack("grading")
def test_an_answer_to_a_puzzle_is_never_run_as_code() -> None:
    look_up = "__import__('sys')._getframe(1).f_locals['entry']['answer']"
    scorer = "[m for m in __import__('sys').modules.values() if hasattr(m, '_scored')][0]"
    forge = f"{scorer}.__dict__.update(_scored=lambda *_: 1.0)"

    async def main() -> None:
        async with Environment("reasoning-gym", environment_variables={"RG_DATASET": "n_queens"}) as env:
            for kind in ("n_queens", "spiral_matrix", "countdown", "simple_integration"):
                await env.call_function("load_question", {"dataset": kind})
                for answer in (look_up, f"{look_up}.split()", forge):
                    await env.call_tool("submit_answer", {"answer": answer})
                    assert (await env.call_reward({}))["score"] < 0.1
                await solve(env)
                assert (await env.call_reward({}))["score"] == 1.0

    run(main())


@pytest.mark.long
@pytest.mark.parametrize("name", ["reasoning-gym", "gymnasium", "bfcl"])
def test_instances_are_forks_of_one_that_has_it_loaded(name: str, platform: local_lease.LocalPaths) -> None:
    async def main() -> None:
        async with Environment.batch(name, 3) as batch:
            await batch.all()

    run(main())
    assert f"{name}@1.0.0 is loaded anew" not in platform.log.read_text()


@pytest.mark.parametrize(
    "kind", ["base_0", "base_117", "miss_func_0", "miss_func_49", "miss_param_3", "long_context_9"]
)
def test_the_solution_of_a_task_in_many_turns_earns_one_and_nothing_done_does_not(kind: str) -> None:
    variables = {"BFCL_TASK": f"multi_turn_{kind}"}

    async def main() -> None:
        async with Environment("bfcl", environment_variables=variables) as env:
            assert (await env.call_reward({}))["score"] == 0.0
            assert (await env.call_tool("get_request", {})).data
            await solve(env)
            assert (await env.call_function("get_task", {}))["done"]
            assert (await env.call_reward({}))["score"] == 1.0

    run(main())


def test_a_wrong_call_in_a_turn_earns_nothing() -> None:
    async def main() -> None:
        async with Environment("bfcl") as env:
            steps: list[dict[str, Any]] = await env.call_function("get_solution", {})
            assert (await env.call_tool("mkdir", {"dir_name": "elsewhere"})).data == "None"
            for step in steps:
                await env.call_tool(step["tool"], step["arguments"])
            graded = await env.call_reward({})
            assert (graded["score"], graded["error_type"]) == (0.0, "multi_turn:instance_state_mismatch")

    run(main())


def test_an_environment_of_gymnasium_is_played_with_tools() -> None:
    variables = {"GYM_KWARGS": '{"is_slippery": false}'}

    async def main() -> None:
        async with Environment("gymnasium", environment_variables=variables) as env:
            assert (await env.call_tool("reset", {"seed": 1})).data == {"observation": 0, "info": {"prob": 1}}
            for action in (1, 1, 2, 1, 2, 2):
                seen = (await env.call_tool("step", {"action": action})).data
            assert (seen["observation"], seen["reward"], seen["terminated"]) == (15, 1.0, True)
            assert (await env.call_reward({}))["score"] == 1.0
            refused = await env.call_tool("step", {"action": 0})
            assert refused.is_error
            assert "call reset" in refused.text

    run(main())


def test_arrays_are_lists_and_a_wrong_action_is_said() -> None:
    async def main() -> None:
        async with Environment("gymnasium", environment_variables={"GYM_ENV": "Pendulum-v1"}) as env:
            info = (await env.call_tool("gym_info", {})).data
            assert (info["action_space"]["low"], info["action_space"]["high"]) == ([-2.0], [2.0])
            seen = (await env.call_tool("step", {"action": [0.5]})).data
            assert len(seen["observation"]) == 3
            refused = await env.call_tool("step", {"action": [5]})
            assert "is no action here" in refused.text

    run(main())
