"""Benchmarks over built-in environments, from the command line, in real sandboxes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aenv.cli.commands.evaluate.bench import command
from tests.envs.conftest import _own_hub
from tests.local.conftest import _use_platform, platform

__all__ = ["_own_hub", "_use_platform", "platform"]


def bench(benchmark: str, agent: str, folder: Path, *options: str) -> dict[str, object]:
    words = ["run", benchmark, "--agent", agent, "--run", str(folder), "-o", "json"]
    done = CliRunner().invoke(command, [*words, *(word for option in options for word in ("-O", option))])
    assert done.exit_code == 0, done.output
    summary: dict[str, object] = json.loads(done.stdout)
    return summary


@pytest.mark.parametrize(("agent", "reward"), [("gold", 1.0), ("nop", 0.0)])
def test_solutions_get_one_and_doing_nothing_gets_zero(agent: str, reward: float, tmp_path: Path) -> None:
    summary = bench("bfcl", agent, tmp_path / "bfcl", "tasks=multi_turn_base_5,multi_turn_miss_param_7")
    assert (summary["mean_reward"], summary["do_nothing"], summary["graded"]) == (reward, 0.0, 2)
    summary = bench("reasoning-gym", agent, tmp_path / "rg", "tasks=gcd,sudoku", "seed=5")
    assert (summary["mean_reward"], summary["graded"]) == (reward, 2)


def test_tasks_come_from_the_environment(tmp_path: Path) -> None:
    words = ["run", "bfcl", "--agent", "gold", "--run", str(tmp_path / "r"), "--limit", "2", "-O", "category=miss_func"]
    done = CliRunner().invoke(command, [*words, "-o", "json"])
    results = json.loads(done.stdout)["results"]
    assert [(result["task"], result["reward"]) for result in results] == [
        ("multi_turn_miss_func_0", 1.0),
        ("multi_turn_miss_func_1", 1.0),
    ]
    assert results[0]["calls"][0]["tool"] == "cd"


AGENT = """
import asyncio
from aenv import Environment

async def main():
    async with Environment("task") as env:
        question = (await env.call_tool("get_question", {})).data
        assert question == await env.call_function("get_instruction", {})
        assert (await env.call_tool("submit_answer", {"answer": 7})).is_error
        await env.call_tool("submit_answer", {"answer": "no idea"})

asyncio.run(main())
"""


def test_a_program_can_be_the_agent_and_its_calls_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    agent = f"{sys.executable} {tmp_path / 'agent.py'}"
    summary = bench("reasoning-gym", agent, tmp_path / "rg", "tasks=gcd")
    (result,) = summary["results"]  # type: ignore[misc]
    assert result["reward"] == 0.0
    assert [call["tool"] for call in result["calls"]] == ["get_question", "submit_answer", "submit_answer"]
    assert result["calls"][2]["arguments"] == {"answer": "no idea"}
