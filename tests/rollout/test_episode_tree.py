"""Fork the episodes of a rollout at chosen turns, on a real local platform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aenv.errors import UsageError
from aenv.rollout import (
    BranchedEpisode,
    Episode,
    EpisodeResult,
    EpisodeTree,
    ScriptedModel,
    TaskLimits,
    calls,
    rollout_tree,
)
from aenv.trajectory import TrajectoryStore
from tests.conftest import run
from tests.isolation.host import Platform

CODE = """
import threading, time
from aenv import register_function, register_reward, register_tool

numbers = []

@register_function
def begin(number: int) -> str:
    numbers.append(number)
    return "Add numbers."

@register_tool
def add(number: int) -> list:
    numbers.append(number)
    return numbers

@register_tool
def start_thread() -> str:
    threading.Thread(target=time.sleep, args=(600,), name="mine", daemon=True).start()
    return ""

@register_reward
def total() -> float:
    return float(sum(numbers))
"""
TASK = {"id": "sum", "setup": {"function": "begin", "arguments": {"number": 1000}}}


@pytest.fixture
def project(tmp_path: Path) -> str:
    folder = tmp_path / "adding"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "env.py").write_text(CODE)
    (folder / "config.json").write_text('{"name": "adding", "version": "1.0.0", "buildConfig": {}, "deployConfig": {}}')
    return str(folder)


async def adding(episode: Episode, memory: list[Any]) -> bool:
    """Add 1, then 10, then 100, each times the number of the sample plus 1, and remember what was added."""
    number = 10 ** len(memory) * (episode.sample + 1)
    await episode.call("add", number=number)
    memory.append(number)
    return len(memory) < 3


def grown(project: str, store: TrajectoryStore, **options: Any) -> EpisodeTree:
    made: EpisodeTree = run(rollout_tree(project, TASK, store=store, **{"turn": adding, **options}))
    return made


def rewards(tree: EpisodeTree) -> list[Any]:
    return [each.result.reward for each in tree.episodes]


def test_forks_continue_from_the_turn_and_are_recorded_with_their_lineage(
    project: str, store: TrajectoryStore, platform: Platform
) -> None:
    tree = grown(project, store, branch={1: 3})
    # setup and the first turn are those of the first episode; what follows is each one's own
    assert rewards(tree) == [1111.0, 1221.0, 1331.0]
    assert {each.result.outcome for each in tree.episodes} == {"ok"}
    first = tree.episodes[0].result.episode
    assert [(each.parent, each.turn, each.forks) for each in tree.episodes] == [
        ("", 0, (1,)), (first, 1, ()), (first, 1, ()),
    ]  # fmt: skip
    recorded = {each.id: list(each.parents) for each in store.all_episodes(tree.run)}
    lineage = [{"kind": "fork", "episode": first, "turn": 1}]
    assert recorded == {each.result.episode: lineage if each.parent else [] for each in tree.episodes}
    assert [each.result.steps for each in tree.episodes] == [3, 2, 2]


def test_a_function_chooses_where_forks_are_forked_again(
    project: str, store: TrajectoryStore, platform: Platform
) -> None:
    tree = grown(project, store, branch=lambda episode, turn: 2 if turn else 1, samples=2)
    assert len(tree.episodes) == 8
    assert len(set(rewards(tree))) == 8
    nodes = tree.continuations()
    assert len(nodes) == 2 + 4 + 8
    assert sum(each.end is None for each in nodes) == 8
    assert sum(each.advantage or 0.0 for each in nodes) == pytest.approx(0.0)


def test_a_model_continues_the_conversation_in_each_fork(
    project: str, store: TrajectoryStore, platform: Platform
) -> None:
    model = ScriptedModel([calls(("add", {"number": 1})), calls(("add", {"number": 10})), "done"])
    tree: EpisodeTree = run(rollout_tree(project, TASK, store=store, model=model, branch={1: 2}))
    assert rewards(tree) == [1011.0, 1011.0]
    fork = tree.episodes[1].result
    said = [event for event in store.events(fork.episode) if event["kind"] == "message"]
    assert [event["role"] for event in said] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert ["usage" in event for event in said if event["role"] == "assistant"] == [False, True, True]
    assert fork.steps == 1


def test_the_number_of_episodes_and_the_budget_of_a_path_are_limits(
    project: str, store: TrajectoryStore, platform: Platform
) -> None:
    tree = grown(project, store, branch=lambda episode, turn: 10, most=4, limits=TaskLimits(steps=2))
    assert len(tree.episodes) == 4
    assert [(each.turn, each.result.steps, each.result.outcome) for each in tree.episodes] == [
        (0, 2, "timeout")
    ] * 4  # fmt: skip
    limited = grown(project, store, branch={1: 2}, limits=TaskLimits(steps=2))
    assert [each.result.steps for each in limited.episodes] == [2, 1]


def test_an_instance_that_cannot_be_forked_is_an_error_of_the_whole_tree(
    project: str, store: TrajectoryStore, platform: Platform
) -> None:
    async def threads(episode: Episode, memory: list[Any]) -> bool:
        await episode.call("start_thread")
        return True

    with pytest.raises(UsageError, match=r"cannot be forked.*mine"):
        grown(project, store, branch={1: 2}, turn=threads)


def test_a_tree_needs_room_for_its_samples(project: str, store: TrajectoryStore) -> None:
    with pytest.raises(UsageError, match="at least"):
        grown(project, store, branch={}, samples=3, most=2)


def branched(name: str, score: float | None, parent: str = "", turn: int = 0, *forks: int) -> BranchedEpisode:
    outcome: Any = "infra" if score is None else "ok"
    return BranchedEpisode(EpisodeResult("t", 0, outcome, score, score, episode=name), parent, turn, forks)


def test_advantages_compare_the_continuations_of_one_fork() -> None:
    tree = EpisodeTree("run", [
        branched("a", 1.0, "", 0, 2, 5),
        branched("b", 0.0, "a", 2),
        branched("c", 0.5, "a", 5),
        branched("d", 0.0),
    ])  # fmt: skip
    found = {(each.episode, each.turn): (each.end, each.value, each.advantage) for each in tree.continuations()}
    assert found == {
        ("a", 0): (2, 0.5, 0.25),
        ("d", 0): (None, 0.0, -0.25),
        ("a", 2): (5, 0.75, 0.375),
        ("b", 2): (None, 0.0, -0.375),
        ("a", 5): (None, 1.0, 0.25),
        ("c", 5): (None, 0.5, -0.25),
    }


def test_an_episode_without_a_reward_is_left_out_of_the_mean() -> None:
    tree = EpisodeTree("run", [branched("a", 1.0, "", 0, 1), branched("b", None, "a", 1), branched("c", 0.0, "a", 1)])
    found = {(each.episode, each.turn): (each.value, each.advantage) for each in tree.continuations()}
    assert found == {("a", 0): (0.5, 0.0), ("a", 1): (1.0, 0.5), ("b", 1): (None, None), ("c", 1): (0.0, -0.5)}
