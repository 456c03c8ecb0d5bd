"""Rounds of fuzzing: seeded, so that a failure can be had again."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzzing.readers import Target


def once(target: Target, number: int, examples: int) -> None:
    """Try so many inputs; the smallest that fails is told."""

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        target(data)

    check()
