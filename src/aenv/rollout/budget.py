"""Budgets of an episode: steps, tokens, cost and seconds."""

from __future__ import annotations

import time
from typing import Literal

from aenv.errors import AEnvError
from aenv.schema.tasks import TaskLimits

BudgetName = Literal["steps", "tokens", "cost", "seconds", "context"]


class BudgetSpent(AEnvError):
    """A budget of the episode is used up. The runner ends the agent and grades the state that it has reached."""

    code, fault = "budget_spent", "timeout"

    def __init__(self, budget: BudgetName, message: str) -> None:
        super().__init__(message, {"budget": budget})
        self.budget: BudgetName = budget


class Budget:
    """Limits of an episode, and its use so far."""

    def __init__(self, limits: TaskLimits) -> None:
        self.limits = limits
        self.steps = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost = 0.0
        self._deadline: float | None = None

    def start(self) -> None:
        """Start the clock."""
        if self.limits.seconds is not None:
            self._deadline = time.monotonic() + self.limits.seconds

    @property
    def tokens(self) -> int:
        """Tokens used so far, read and written."""
        return self.input_tokens + self.output_tokens

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def tokens_left(self) -> int | None:
        """Tokens that may still be used; None without a limit."""
        return None if self.limits.tokens is None else max(0, self.limits.tokens - self.tokens)

    def check(self) -> None:
        """Raise BudgetSpent if there is no further model request: tokens, cost or seconds are used up."""
        limits = self.limits
        if limits.tokens is not None and self.tokens >= limits.tokens:
            raise BudgetSpent("tokens", f"the episode has used {self.tokens} of {limits.tokens} tokens")
        if limits.cost is not None and self.cost >= limits.cost:
            raise BudgetSpent("cost", f"the episode has cost {self.cost:.6g} of {limits.cost:g}")
        self._check_time()

    def has_room(self, tokens: int, cost: float) -> bool:
        """Return whether so many further tokens, at this cost, leave something of the budget."""
        limits = self.limits
        return (limits.tokens is None or self.tokens + tokens < limits.tokens) and (
            limits.cost is None or self.cost + cost < limits.cost
        )

    def _check_time(self) -> None:
        if self.seconds_left == 0.0:
            raise self.out_of_time()

    def take_step(self) -> None:
        """Count a tool call. Raises BudgetSpent if there was none left, or no time.

        Tokens and cost do not count here: the calls of the last answer that they have paid for are still made.
        """
        self._check_time()
        if self.limits.steps is not None and self.steps >= self.limits.steps:
            raise BudgetSpent("steps", f"the agent has made all of its {self.limits.steps} tool calls")
        self.steps += 1

    def use(self, input_tokens: int, output_tokens: int, cost: float) -> None:
        """Count a model request."""
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost += cost

    def out_of_time(self) -> BudgetSpent:
        """Return the error of an episode that has reached its deadline."""
        return BudgetSpent("seconds", f"the agent has used its {self.limits.seconds:g} seconds")
