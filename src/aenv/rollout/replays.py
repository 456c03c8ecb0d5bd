"""Replay recorded episodes on instances that a set of tasks opens: benchmarks, and worlds that are no environments.

`aenv.trajectory.replay` replays in an environment that its name finds. The worlds of other tasks, such as the
containers of Terminal-Bench, are opened, prepared and graded by their set of tasks, as in the rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from aenv.errors import UsageError
from aenv.rollout.task_set import TaskSet
from aenv.rollout.task_sources import find_tasks
from aenv.trajectory.events import Event
from aenv.trajectory.regression import equal, recorded
from aenv.trajectory.replay import ReplayReport, replay_on, replayable


async def replay_task(
    events: Iterable[Event], tasks: TaskSet | str | Path, environment: str = "", *, ignore: Sequence[str] = ()
) -> ReplayReport:
    """Replay the calls of an episode on the instance of its task.

    Args:
        events: The recorded events.
        tasks: The set of tasks, as `rollout` takes it.
        environment: Environment of the tasks that name none.
        ignore: Regular expressions; what they match in texts is not compared.

    Raises:
        UsageError: the set has no such task.
        AEnvError: the instance could not be created.
    """
    kept = replayable(events)
    id = kept[0]["task"]["id"]
    found = find_tasks(tasks, environment)
    try:
        task = next((each for each in await found.tasks() if each.id == id), None)
        if task is None:
            raise UsageError(f"the set of tasks has no task {id!r}")
        async with found.open(task) as world:
            await found.prepare(world, task)
            agent = kept[0].get("agent") or {}
            if agent.get("name") == "gold" or agent.get("solution"):
                await found.solution(world, task)  # puts the files in place that its calls use
            return await replay_on(
                world, kept, f"task {id}", ignore=ignore, skip={"setup"},
                before_grading=lambda: found.finish(world, task),
            )  # fmt: skip
    finally:
        await found.close()


def check_replay(path: Path, tasks: str, *, ignore: Sequence[str] = ()) -> ReplayReport:
    """Replay the events in a file on the instance of their task, and compare them.

    Raises:
        AssertionError: a result or the reward is another one; the message shows the first difference.
    """
    return equal(asyncio.run(replay_task(recorded(path), tasks, ignore=ignore)))
