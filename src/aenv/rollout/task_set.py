"""Sets of tasks: what to run, and how the instance of a task is opened, prepared and graded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from aenv.errors import UsageError
from aenv.rollout.world import World
from aenv.schema.tasks import Task, TaskStep
from aenv.sdk.environment import Environment

SEED_VARIABLE = "AENV_SEED"
_SCORES = ("reward", "score", "total_reward")


class TaskSet:
    """Tasks of one environment. Subclasses open another kind of world, or prepare it in another way.

    Args:
        tasks: The tasks, or rows of them.
        environment: Environment of the tasks that name none.
        options: Other arguments of `Environment`, such as ``ttl`` or ``network``.
        score: Name of the number that counts in a reward that is a dict. Default: ``reward``, ``score`` or
            ``total_reward``, or its only number.
    """

    def __init__(
        self,
        tasks: Iterable[Task | Mapping[str, Any]],
        environment: str = "",
        *,
        options: Mapping[str, Any] | None = None,
        score: str | None = None,
    ) -> None:
        self._tasks = [
            task if isinstance(task, Task) else Task.of_row(task, number) for number, task in enumerate(tasks)
        ]
        self.environment = environment
        self._options = dict(options or {})
        self._score = score

    async def tasks(self) -> Sequence[Task]:
        """Return the tasks."""
        return self._tasks

    def open(self, task: Task) -> AbstractAsyncContextManager[World]:
        """Return the instance of a task, as a context manager. Instances with the same parameters are forks."""
        variables = {**self._options.get("environment_variables", {}), **task.variables}
        if task.seed is not None:
            variables.setdefault(SEED_VARIABLE, str(task.seed))
        return Environment(
            task.environment or self.environment,
            **{
                **self._options,
                "environment_variables": variables,
                "arguments": task.arguments or self._options.get("arguments"),
                "datasource": task.datasource or self._options.get("datasource", ""),
            },
        )

    async def prepare(self, world: World, task: Task) -> str:
        """Call the task's setup function, and return the instruction for the agent."""
        made: Any = None
        if task.setup is not None:
            made = await world.call_function(task.setup.function, task.setup.arguments)
        if task.instruction:
            return task.instruction
        return made if isinstance(made, str) else str(made.get("instruction", "")) if isinstance(made, dict) else ""

    async def solution(self, world: World, task: Task) -> list[TaskStep]:
        """Return the tool calls that solve a task, for the agent `gold`; none if they are not known."""
        return task.solution

    async def finish(self, world: World, task: Task) -> None:
        """Tell the environment that the agent has ended, if it needs that. Called before grading."""

    def score(self, reward: Any) -> float | None:
        """Return the number of a reward that counts in statistics."""
        if isinstance(reward, bool | int | float):
            return float(reward)
        if not isinstance(reward, Mapping):
            return None
        if self._score is not None:
            return self.score(reward.get(self._score))
        for name in _SCORES:
            if name in reward:
                return self.score(reward[name])
        numbers = [value for value in reward.values() if isinstance(value, int | float)]
        return float(numbers[0]) if len(numbers) == 1 else None

    def check_score(self, reward: Any) -> None:
        """Check that an object has the number that the caller has chosen.

        Raises:
            UsageError: it has not; the name is probably misspelled, and would be for every episode.
        """
        if self._score is None or not isinstance(reward, Mapping) or self._score in reward:
            return
        there = ", ".join(map(str, reward)) or "nothing"
        raise UsageError(f"the reward has no {self._score!r}, which is to be its score; it has {there}")

    async def close(self) -> None:
        """Release resources."""
