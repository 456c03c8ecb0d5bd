"""The interface of a benchmark: list its tasks, run a task, grade it again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from aenv.errors import AEnvError, Fault, InstanceEnded, StateDestroyed, UsageError

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
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each part in seconds."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Calls of the agent: tool, arguments and result."""
    outputs: dict[str, Any] = field(default_factory=dict)
    """Other information: the verifier's last lines, the load of the machine."""

    @property
    def counts(self) -> bool:
        """True if the result has a reward, so that it counts in the mean."""
        return self.reward is not None

    def failed(self, error: Exception) -> Result:
        """Record an error: the result has no reward, or the failure reward if the agent caused the error."""
        self.fault = error.fault if isinstance(error, AEnvError) else "infra"
        ended_by_agent = isinstance(error, InstanceEnded | StateDestroyed) and error.fault == "policy"
        self.reward = FAILURE if ended_by_agent else None
        self.error = error.message if isinstance(error, AEnvError) else f"{type(error).__name__}: {error}"
        return self

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document that is saved."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Result:
        """Return the result from a saved JSON document."""
        return cls(**document)


@dataclass(frozen=True, slots=True)
class BenchJob:
    """A task to run with an agent."""

    task: str
    agent: str
    """Name of one of the benchmark's own agents, or a command."""
    folder: Path
    """Existing folder for the files of this job only."""


class Benchmark(ABC):
    """A set of tasks of one kind. Its options are strings, so that a run can be resumed with the same ones."""

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

    @abstractmethod
    async def run(self, job: BenchJob) -> Result:
        """Run one task. An exception becomes a result without a reward."""

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
