"""Statistics of episodes: what counts, what is left out, and how sure the mean is."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.trajectory.events import EpisodeSummary
from aenv.trajectory.statistics import (
    advantages,
    interval,
    pass_all_k,
    pass_at_k,
    student_quantile,
    summarize,
)

numbers = itertools.count()


def episode(task: str, sample: int, score: float | None, outcome: str = "ok", **more: Any) -> EpisodeSummary:
    fields: dict[str, Any] = {"state": "ended", "final": True, "attempt": 0, **more}
    return EpisodeSummary(
        id=f"ep-{next(numbers)}", run="r", task=task, sample=sample, began=0.0, outcome=outcome, score=score, **fields
    )


def test_only_graded_final_episodes_count() -> None:
    found = summarize(
        [
            episode("a", 0, 1.0),
            episode("a", 1, 0.0, "policy"),
            episode("b", 0, 0.5, "timeout"),
            episode("b", 1, None, "infra", final=False),
            episode("b", 1, None, "infra"),
            episode("c", 0, None, "env"),
            episode("c", 1, None, "user"),
            episode("c", 2, None, "cancelled"),
            episode("c", 3, None),
            episode("c", 4, None, state="unfinished", final=False),
        ],
        do_nothing={"a": 0.0, "b": 0.25},
    )
    assert (found.episodes, found.counted) == (10, 3)
    assert found.reward is not None
    assert found.reward.mean == 0.5
    assert found.left_out == {
        "attempted again": 1, "infra": 1, "env": 1, "user": 1, "cancelled": 1, "without a reward": 1, "unfinished": 1,
    }  # fmt: skip
    assert found.outcomes == {"ok": 2, "policy": 1, "timeout": 1, "infra": 1, "env": 1, "user": 1, "cancelled": 1}
    assert found.do_nothing == pytest.approx(0.25 / 3)
    assert summarize([episode("a", 0, 1.0)], do_nothing={"x": 1.0}).do_nothing is None


def test_what_doing_nothing_gets_is_read_from_rewards_that_tell_it() -> None:
    told = [episode("a", 0, 1.0, reward={"score": 1.0, "do_nothing_reward": 0.25}), episode("b", 0, 1.0)]
    assert summarize(told[:1]).do_nothing == 0.25
    assert summarize(told).do_nothing is None
    assert summarize(told, do_nothing={"b": 0.0, "a": 0.5}).do_nothing == 0.25


def test_nothing_graded_has_no_mean() -> None:
    found = summarize([episode("a", 0, None, "infra")])
    assert (found.reward, found.pass_at, found.counted) == (None, {}, 0)


@given(st.integers(1, 12), st.data())
def test_pass_at_k_and_pass_all_k_are_the_shares_of_all_draws(samples: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, min(samples, 4)))
    draws = list(itertools.combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_all_k(samples, passed, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_pass_rates_are_means_over_tasks_with_enough_samples() -> None:
    found = summarize([*(episode("a", n, float(n < 2)) for n in range(4)), episode("b", 0, 1.0)], ks=(1, 2, 4, 8))
    assert found.pass_at == pytest.approx({1: (0.5 + 1) / 2, 2: 1 - 1 / 6, 4: 1.0})
    assert found.pass_all == pytest.approx({1: (0.5 + 1) / 2, 2: 1 / 6, 4: 0.0})


def test_advantages_are_distances_from_the_group_in_deviations() -> None:
    assert advantages([1.0, 0.0, 1.0, 0.0]) == pytest.approx([0.8660254, -0.8660254, 0.8660254, -0.8660254])
    assert advantages([0.3, 0.3]) == [0.0, 0.0]
    found = summarize([episode("a", n, 0.0) for n in range(4)])
    assert found.without_signal == 1
    assert found.as_json()["tasks"][0]["advantages"] == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}


def test_the_quantiles_of_students_t_are_those_of_the_tables() -> None:
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 29: 2.045, 120: 1.980, 5000: 1.960}
    assert {n: round(student_quantile(0.975, n), 3) for n in table} == table


def test_samples_of_one_task_do_not_make_the_interval_narrow() -> None:
    """Ten tasks that always or never pass are ten facts, whether each is sampled once or a hundred times."""
    once = interval([[float(n % 2)] for n in range(10)])
    often = interval([[float(n % 2)] * 100 for n in range(10)])
    assert once is not None and often is not None  # noqa: PT018
    assert often.high is not None and once.high is not None  # noqa: PT018
    assert often.high - often.mean == pytest.approx(once.high - once.mean, rel=0.1)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance = random.Random(3)
    for draw in (lambda p: float(chance.random() < p), lambda p: chance.gauss(p, 0.3)):
        hits = 0
        for _ in range(400):
            groups = []
            for _ in range(25):
                p = chance.choice((0.2, 0.5, 0.8))
                groups.append([draw(p) for _ in range(4)])
            found = interval(groups)
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            hits += found.low <= 0.5 <= found.high
        assert 0.91 <= hits / 400 <= 0.99


def test_the_interval_of_equal_scores_has_a_width() -> None:
    found = interval([[1.0], [1.0], [1.0]])
    assert found is not None
    assert found.low is not None
    assert found.low < 0.6
    assert found.high == 1.0
    one = interval([[0.7]])
    assert one is not None
    assert one.low is None
    assert interval([]) is None
    assert not any(math.isnan(each) for each in (found.mean, found.low, found.high))
