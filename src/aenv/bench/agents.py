"""Agents of a run: built-in ones of the benchmark, those of rollouts that have a name, and commands."""

from __future__ import annotations

from typing import Any

from aenv import plugins
from aenv.bench.base import AgentEnded, Benchmark, WorkOf
from aenv.bench.stopwatch import measured
from aenv.rollout.agents.agent_names import PLUGINS, find_agent
from aenv.rollout.agents.command import AgentFailed, CommandAgent
from aenv.rollout.attempt import Agent
from aenv.rollout.episode import Episode
from aenv.rollout.named_objects import names_object
from aenv.rollout.runs.rollout_run import describe_agent


def bench_agent(benchmark: Benchmark, name: str, work: WorkOf) -> tuple[Agent, dict[str, Any]]:
    """Return the agent that ``name`` names, and its description for the record.

    ``solution`` in the description: its calls use files of the
    task's solution.
    """
    player = benchmark.player(name, work)
    inner = player or _find(name, work)
    about = {"name": name, "solution": True} if player is not None else describe_agent(inner, name)
    return kept(inner, work), about


def kept(inner: Agent, work: WorkOf) -> Agent:
    """Return an agent that keeps its errors and its time for the result."""

    async def agent(episode: Episode) -> None:
        own = work(episode.task.id)
        try:
            with measured(own.result.seconds, "agent"):
                await inner(episode)
        except AgentFailed as error:
            own.error = AgentEnded(error.message)
            raise own.error from None
        except Exception as error:
            own.error = error
            raise

    return agent


def _find(name: str, work: WorkOf) -> Agent:
    if plugins.has(PLUGINS, name) or names_object(name):
        return find_agent(name)
    return CommandAgent(name, folder=lambda episode: work(episode.task.id).job.folder)
