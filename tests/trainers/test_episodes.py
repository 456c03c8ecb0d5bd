"""Episodes for trainers, with no trainer: what all adapters stand on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from aenv.adapters.trainers.episodes import EpisodeFailed, EpisodeSource, score_of, shared_source
from aenv.adapters.trainers.text_calls import calls_in, tool_prompt
from aenv.errors import UsageError
from aenv.rollout import BudgetSpent, ScriptedModel
from tests.trainers.treasure import TREASURE, losing_instances, outcomes, walks

Use = Callable[[EpisodeSource], Coroutine[Any, Any, Any]]


def using(store: Path, use: Use, **options: Any) -> Any:
    async def main() -> Any:
        source = EpisodeSource(TREASURE, store=store, **options)
        try:
            return await use(source)
        finally:
            await source.close()

    return asyncio.run(main())


def test_a_trainer_drives_an_episode_and_gets_the_reward(store: Path) -> None:
    async def use(source: EpisodeSource) -> None:
        episode = await source.open("right")
        assert "right end" in episode.instruction
        assert episode.task.id == "right"
        assert [tool["function"]["name"] for tool in episode.tools] == ["move"]
        assert (await episode.call("move", {"direction": "up"})).is_error
        assert (await episode.call("move", '{"direction": "right", "steps": 3}')).data["place"] == 6
        result = await episode.finish()
        assert (result.score, result.steps) == (1.0, 2)
        assert await episode.finish() is result

    using(store, use)
    assert outcomes(store) == [("right", "ok", 1.0)]


def test_a_budget_that_is_used_up_is_graded(store: Path) -> None:
    async def use(source: EpisodeSource) -> None:
        episode = await source.open("left")
        await episode.call("move", {"direction": "left", "steps": 3})
        with pytest.raises(BudgetSpent):
            await episode.call("move", {"direction": "left"})
        result = await episode.finish()
        assert (result.outcome, result.budget, result.score) == ("timeout", "steps", 1.0)

    using(store, use, limits={"steps": 1})


def test_a_lost_instance_leaves_no_reward(store: Path) -> None:
    async def use(source: EpisodeSource) -> None:
        episode = await source.open("left")
        with losing_instances(), pytest.raises(EpisodeFailed) as failed:
            await episode.call("move", {"direction": "left"})
        assert (failed.value.fault, failed.value.details["outcome"]) == ("infra", "infra")
        with pytest.raises(EpisodeFailed):
            score_of(await episode.finish())

    using(store, use)
    assert outcomes(store) == [("left", "infra", None)]


def test_an_episode_that_is_cancelled_is_not_graded(store: Path) -> None:
    async def use(source: EpisodeSource) -> None:
        await (await source.open("left")).cancel()

    using(store, use)
    assert [outcome for _, outcome, _ in outcomes(store)] == ["cancelled"]


def test_an_agent_with_the_trainers_model_plays_to_the_end(store: Path) -> None:
    async def use(source: EpisodeSource) -> None:
        good = await source.play({"task_id": "right"}, model=ScriptedModel(walks("right")))
        bad = await source.play({"task_id": "right"}, model=ScriptedModel(walks("left")))
        assert (good.score, bad.score) == (1.0, 0.0)
        assert good.episode != bad.episode

    using(store, use)


def test_an_infra_failure_is_retried_in_a_new_instance(store: Path) -> None:
    async def use(source: EpisodeSource) -> None:
        with losing_instances():
            result = await source.play("left", model=ScriptedModel(walks("left") * 3), retries=1)
        assert (result.outcome, result.attempt, result.score) == ("infra", 1, None)

    using(store, use)
    assert [outcome for _, outcome, _ in outcomes(store)] == ["infra", "infra"]


def test_tasks_are_found_by_id_number_and_row(store: Path) -> None:
    async def use(source: EpisodeSource) -> None:
        assert [(await source.task(which)).id for which in ("right", 0, 3, {"id": "left", "prompt": []})] == [
            "right",
            "left",
            "right",
            "left",
        ]
        chat = [{"role": "user", "content": "Go right."}]
        described = await source.task({"prompt": chat, "variables": {"TREASURE": "right"}})
        assert (described.instruction, described.variables) == ("Go right.", {"TREASURE": "right"})
        assert (await source.task()).id in ("left", "right")
        with pytest.raises(UsageError, match="no task 'middle'"):
            await source.task("middle")
        with pytest.raises(UsageError, match="no task 'middle'"):
            await source.task({"task_id": "middle"})

    using(store, use)


def test_sources_are_shared_by_their_options(store: Path) -> None:
    options = {"environment": TREASURE, "store": str(store)}
    assert shared_source(options) is shared_source(dict(options))
    assert shared_source(options) is not shared_source({**options, "seed": 1})


def test_calls_are_read_from_text() -> None:
    tagged = 'I go.<tool_call>\n{"name": "move", "arguments": {"steps": 1}}\n</tool_call><tool_call>{</tool_call>'
    assert calls_in(tagged) == [("move", {"steps": 1}), ("", "{")]
    assert calls_in('{"tool": "move", "parameters": {}}') == [("move", {})]
    assert calls_in("no call") == calls_in("[1]") == calls_in('{"name": 3}') == []
    assert '{"name": "x"}' in tool_prompt([{"name": "x"}])
