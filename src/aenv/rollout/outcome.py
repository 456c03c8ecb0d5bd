"""How an episode ends: the outcome of each kind of failure, and whether the state reached is graded.

The rule of docs/concepts.md ("Whose fault is it?"): the reward is absent, never 0, where the end was not the agent's
doing; an end that the agent caused, or a budget that it used up, is graded on the state reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aenv.errors import (
    AEnvError,
    EnvironmentTimeoutError,
    InstanceEnded,
    InvalidArguments,
    StorageFull,
    UsageError,
    UserFailed,
)
from aenv.rollout.budget import BudgetName, BudgetSpent
from aenv.rollout.model import ContextExceeded, ModelRefused
from aenv.trajectory import Outcome

Phase = Literal["start", "setup", "agent", "grade"]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an attempt."""

    outcome: Outcome
    error: str = ""
    fault: str | None = None
    budget: BudgetName | None = None
    """The budget that was used up."""
    leaves_state: bool = True
    """False if the agent could not work at all, so that there is nothing of it to grade."""

    @property
    def is_graded(self) -> bool:
        """True if the state that the agent has reached is graded."""
        return self.leaves_state and self.outcome in ("ok", "policy", "timeout")


OK = Ending("ok")


class AgentCancelled(AEnvError):
    """The agent cancelled its own task."""

    code, fault = "agent_cancelled", "policy"


class AgentUnusable(UsageError):
    """The agent could not do the task at all, for a reason that the caller can change. The episode is not graded."""


class AgentLacks(AgentUnusable):
    """The agent needs something that the caller has not given, such as a model. It stops the rollout."""


def stops_rollout(error: BaseException, phase: Phase) -> bool:
    """Return whether an error would hit every episode, because the caller made it: a wrong key, a wrong name."""
    if isinstance(error, AgentLacks | ModelRefused | StorageFull):  # without space, nothing more can be recorded
        return True
    if not isinstance(error, AEnvError):
        return False
    if isinstance(error, InvalidArguments):  # of one task's reward
        return False
    return error.fault == "caller" and phase in ("start", "grade")


def ending_of(error: BaseException, phase: Phase) -> Ending:
    """Return the ending for an error that was raised in a phase of the episode."""
    text = error.message if isinstance(error, AEnvError) else f"{type(error).__name__}: {error}"
    fault = error.fault if isinstance(error, AEnvError) else None
    if isinstance(error, UserFailed):
        return Ending("user", text, "user")
    if phase == "agent":
        return _agent_ending(error, text, fault)
    if phase == "start":  # no code of the agent has run: only the author's code can be at fault
        return Ending("env" if fault == "env" else "infra", text, fault)
    if isinstance(error, InstanceEnded) and fault == "policy" and phase == "setup":
        return Ending("env", text, "env")
    if isinstance(error, EnvironmentTimeoutError):
        return Ending("env", text, fault)
    if isinstance(error, InvalidArguments):
        text = f"arguments of the task's {'reward' if phase == 'grade' else 'setup function'}: {text}"
    return Ending("env" if fault in ("env", "caller", "policy") else "infra", text, fault)


def _agent_ending(error: BaseException, text: str, fault: str | None) -> Ending:
    if isinstance(error, BudgetSpent):
        return Ending("timeout", text, "timeout", error.budget)
    if isinstance(error, AgentUnusable):
        return Ending("policy", text, fault, leaves_state=False)
    if isinstance(error, ContextExceeded):
        return Ending("timeout", text, "timeout", "context")
    if isinstance(error, InstanceEnded):
        if fault in ("policy", "env"):
            return Ending("policy" if fault == "policy" else "env", text, fault)
        return Ending("infra", text, fault)  # also its time to live, which the runner renews
    if fault == "infra":
        return Ending("infra", text, fault)
    return Ending("policy", text, fault or "policy")  # the agent's own code failed, or gave up
