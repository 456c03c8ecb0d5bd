"""Run an agent, which is a command, on an instance of a benchmark that runs its tasks itself (`Benchmark.run`)."""

from __future__ import annotations

from typing import Any

from aenv.bench.base import AgentEnded, BenchJob, Result
from aenv.bench.call_list import calls_of
from aenv.bench.limits import limit_reached
from aenv.rollout.agents.command import AgentFailed, CommandAgent
from aenv.rollout.attempt import run_agent as run_in_episode
from aenv.rollout.budget import Budget, BudgetSpent
from aenv.rollout.episode import Episode, Recorder
from aenv.rollout.tools import Tools
from aenv.schema.tasks import Task, TaskStep
from aenv.sdk.environment import Environment

CALL_SECONDS = 3600.0


async def run_agent(job: BenchJob, env: Environment, instruction: str, result: Result) -> None:
    """Run the job's agent, a command, until it ends or reaches a limit of the job. Its calls are in the result.

    Raises:
        AgentEnded: the agent ended with an error.
    """
    recorder = _EventList(job.recorder)
    episode = Episode(
        Task(id=job.task, instruction=instruction),
        instruction=instruction,
        env=env,
        tools=Tools(env.env_name, await env.list_tools()),
        recorder=recorder,
        budget=Budget(job.limits.as_budget()),
        call_seconds=CALL_SECONDS,
        solution=_no_solution,
    )
    episode.budget.start()
    error = await run_in_episode(CommandAgent(job.agent, folder=lambda _: job.folder), episode)
    result.calls += calls_of(recorder.events)
    if isinstance(error, BudgetSpent):
        result.outcome, result.error = limit_reached(episode.budget.limits, error.budget)
        result.fault = "timeout"
    elif isinstance(error, AgentFailed):
        raise AgentEnded(error.message) from None
    elif error is not None:
        raise error


class _EventList:
    """Keeps the events of an episode, and passes them on to the recorder of the run."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.events: list[dict[str, Any]] = []
        self._recorder = recorder

    @property
    def episode_id(self) -> str:
        return self._recorder.episode_id if self._recorder is not None else ""

    def append(self, kind: str, /, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})
        if self._recorder is not None:
            self._recorder.append(kind, **fields)


async def _no_solution() -> list[TaskStep]:
    return []
