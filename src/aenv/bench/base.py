"""The interface of a benchmark: list its tasks, open them as episodes for an agent, grade again what it has left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from aenv.bench.limits import AgentLimits
from aenv.errors import AEnvError, Fault, InstanceEnded, StateDestroyed, UsageError
from aenv.rollout.outcome import AgentUnusable

if TYPE_CHECKING:
    from aenv.rollout.attempt import Agent
    from aenv.rollout.episode import Recorder
    from aenv.rollout.task_set import TaskSet


class NoSolution(AgentUnusable):
    """The benchmark knows no solution of a task, so that the agent that performs it has nothing to do."""


class AgentEnded(AgentUnusable):
    """The program that is the agent ended with an error."""


Outcome = Literal["graded", "timeout", "budget", "destroyed", "agent_failed", "no_solution", "failed"]
"""How a task ended. The first four have a reward; `failed`: see the fault."""

FAILURE = 0.0
"""Reward of a task whose state the agent has destroyed; no benchmark here has a lower one."""


@dataclass(slots=True)
class Result:
    """Result of one task."""

    task: str
    reward: float | None = None
    """None if a failure that says nothing about the agent prevented grading; it is never 0 then. If the agent has
    destroyed what it would be graded on, this is the declared failure reward and the fault is `policy`."""
    fault: Fault | None = None
    """Fault of the failure that prevented a reward or ended the run early."""
    error: str = ""
    outcome: Outcome | None = None
    """How the task ended; None in results of earlier versions."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each part in seconds."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Calls of the agent: tool, arguments and result."""
    outputs: dict[str, Any] = field(default_factory=dict)
    """Other information: the verifier's last lines, the load of the machine."""

    @property
    def is_final(self) -> bool:
        """True if running the task again would give the same: it has a reward, or no solution is known."""
        return self.counts or self.outcome == "no_solution"

    @property
    def counts(self) -> bool:
        """True if the result has a reward, so that it counts in the mean."""
        return self.reward is not None

    def failed(self, error: Exception) -> Result:
        """Record an error: the result has no reward, or the failure reward if the agent caused the error."""
        self.fault = error.fault if isinstance(error, AEnvError) else "infra"
        ended_by_agent = isinstance(error, InstanceEnded | StateDestroyed) and error.fault == "policy"
        self.reward = FAILURE if ended_by_agent else None
        self.outcome = "destroyed" if ended_by_agent else _OUTCOMES.get(type(error), "failed")
        self.error = error.message if isinstance(error, AEnvError) else f"{type(error).__name__}: {error}"
        return self

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document that is saved."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Result:
        """Return the result from a saved JSON document."""
        return cls(**document)


_OUTCOMES: dict[type[Exception], Outcome] = {NoSolution: "no_solution", AgentEnded: "agent_failed"}


@dataclass(frozen=True, slots=True)
class BenchJob:
    """A task to run with an agent."""

    task: str
    agent: str
    """Name of one of the benchmark's own agents, or a command."""
    folder: Path
    """Existing folder for the files of this job only."""
    limits: AgentLimits = field(default_factory=AgentLimits)
    """Limits of the agent's work."""
    recorder: Recorder | None = None
    """Receiver of the events of the episode."""


@dataclass(slots=True)
class TaskWork:
    """A task in progress: the job, and what is known so far of its result."""

    job: BenchJob
    result: Result
    error: Exception | None = None
    """Last error of its episode."""
    is_complete: bool = False
    """True if the result needs nothing more: an older benchmark has made it."""


WorkOf = Callable[[str], TaskWork]
"""Returns the work on a task."""


class Benchmark(ABC):
    """A set of tasks of one kind. Its options are strings, so that a run can be resumed with the same ones.

    A benchmark has `episodes`, which the runner of `aenv.rollout` runs. Older ones have `run` in its place.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """Description in one line."""
    agents: ClassVar[Mapping[str, str]]
    """Built-in agents: name and description."""
    options: ClassVar[Mapping[str, str]] = {}
    """Options: name and description."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.given = dict(options)

    @abstractmethod
    def tasks(self) -> Sequence[str]:
        """Return the names of all selected tasks.

        Raises:
            UsageError, ConfigError: there are none, or they cannot be read.
        """

    def episodes(self, work: WorkOf) -> TaskSet:
        """Return the tasks for the runner: how each one is opened, prepared and graded."""
        raise NotImplementedError(f"the benchmark {self.name} has neither episodes nor run")

    def player(self, agent: str, work: WorkOf) -> Agent | None:
        """Return the built-in agent of this name; None for other agents, such as commands."""
        return None

    async def run(self, job: BenchJob) -> Result:
        """Run one task. An exception becomes a result without a reward."""
        from aenv.bench.runner import run_job  # which imports this

        return await run_job(self, job)

    async def grade(self, job: BenchJob) -> Result:
        """Grade again the state that an earlier `run` has left in the job's folder.

        Raises:
            UsageError: this benchmark keeps no state, or there is none.
        """
        raise UsageError(f"{self.name} keeps no state that can be graded again")

    def nothing(self) -> Mapping[str, float]:
        """Return the rewards of doing nothing, for the tasks where they are known."""
        return {}

    async def close(self) -> None:
        """Release resources."""
        return
