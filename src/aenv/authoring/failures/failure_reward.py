"""The failure reward: the reward of an agent that has destroyed what it would have been graded on.

It is an ordinary number or dict, so that a trainer needs no second code path. It is marked, so that a caller can tell
it from a reward that the author's code computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT = 0.0
"""Failure reward of an environment whose config.json declares no ``failureReward``."""


class FailureReward(float):
    """A failure reward that is a number."""

    reason: str


class FailureRewards(dict[str, Any]):
    """A failure reward that is a dict, for environments whose reward is a dict."""

    reason: str


def failure_reward(declared: float | Mapping[str, Any] | None, reason: str) -> FailureReward | FailureRewards:
    """Return the declared failure reward, marked with the reason."""
    made: FailureReward | FailureRewards
    if isinstance(declared, Mapping):
        made = FailureRewards(declared)
    else:
        made = FailureReward(DEFAULT if declared is None else declared)
    made.reason = reason
    return made


def failure_reason(reward: object) -> str | None:
    """Return why ``reward`` is the environment's failure reward; None for a computed reward.

    Example:
        ```python
        reward = await env.call_reward()
        if failure_reason(reward):
            print(f"the agent gets {reward}: {failure_reason(reward)}")
        ```
    """
    return reward.reason if isinstance(reward, FailureReward | FailureRewards) else None
