"""Instances to try call sequences in: each sequence runs in a fresh one that its start task prepares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aenv.errors import AEnvError
from aenv.rollout.task_set import TaskSet
from aenv.rollout.world import World
from aenv.schema.tasks import StateProbe, Task, TaskStep
from aenv.sdk.state_check import failed, observe

CALL_SECONDS = 30.0
"""Time limit of one call while tasks are made: slow calls make slow tasks."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a call sequence in a fresh instance."""

    executed: bool
    """True: every call succeeded."""
    results: list[Any]
    state: list[dict[str, Any]]
    """Answers of the probes afterwards; empty if a call failed."""


class TrialInstances:
    """Opens instances of a start task, only so many at a time.

    Args:
        tasks: Opens and prepares instances.
        concurrency: Maximum number of instances at the same time.
        on_open: Called with the number of instances opened so far, for each.
    """

    def __init__(self, tasks: TaskSet, concurrency: int, on_open: Callable[[int], None] = lambda opened: None) -> None:
        self._tasks = tasks
        self._free = asyncio.Semaphore(concurrency)
        self._on_open = on_open
        self.opened = 0
        """Instances opened so far."""

    @asynccontextmanager
    async def open(self, start: Task) -> AsyncIterator[World]:
        """Open an instance and prepare it."""
        async with self._free, self._tasks.open(start) as world:
            self.opened += 1
            self._on_open(self.opened)
            await self._tasks.prepare(world, start)
            yield world

    async def solution(self, start: Task) -> list[TaskStep]:
        """Return the known solution of a start task; none if there is none."""
        async with self.open(start) as world:
            return await self._tasks.solution(world, start)

    async def run(self, start: Task, steps: Sequence[TaskStep], probes: Sequence[StateProbe] = ()) -> Trial:
        """Make the calls in a fresh instance, then observe its state."""
        results: list[Any] = []
        async with self.open(start) as world:
            for step in steps:
                done, value = await attempt(world, step)
                if not done:
                    return Trial(False, results, [])
                results.append(value)
            return Trial(True, results, [await observe(world, probe, CALL_SECONDS) for probe in probes])


async def attempt(world: World, step: TaskStep) -> tuple[bool, Any]:
    """Make a call. Return whether it succeeded, and its result.

    Raises:
        AEnvError: the machine or the platform failed.
    """
    try:
        result = await world.call_tool(step.tool, step.arguments, CALL_SECONDS)
    except AEnvError as error:
        if error.fault == "infra":
            raise
        return False, None
    return not failed(result), result.data
