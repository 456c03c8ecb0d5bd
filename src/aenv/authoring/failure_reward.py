"""The reward of an agent that has destroyed what it would have been graded on.

It is an ordinary number, or dict, so that a trainer needs no second path; and it is marked, so that whoever wants to
know can tell it from one that the author's code has computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT = 0.0
"""Where config.json declares no ``failureReward``."""


class FailureReward(float):
    """A number that the environment declared, and did not compute."""

    reason: str


class FailureRewards(dict[str, Any]):
    """The same for environments whose reward is a dict."""

    reason: str


def failure_reward(declared: float | Mapping[str, Any] | None, reason: str) -> FailureReward | FailureRewards:
    """The declared failure reward, marked with why it is one."""
    made: FailureReward | FailureRewards
    if isinstance(declared, Mapping):
        made = FailureRewards(declared)
    else:
        made = FailureReward(DEFAULT if declared is None else declared)
    made.reason = reason
    return made


def failure_reason(reward: object) -> str | None:
    """Why a reward is the environment's declared failure reward; None for one that was computed."""
    return reward.reason if isinstance(reward, FailureReward | FailureRewards) else None
