"""The contract of a benchmark: which tasks it has, and how one of them is run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from aenv.errors import AEnvError, Fault, InstanceEnded, StateDestroyed, UsageError

FAILURE = 0.0
"""The reward of a task whose state the agent has destroyed: no benchmark here pays less than 0."""


@dataclass(slots=True)
class Result:
    """What came of one task."""

    task: str
    reward: float | None = None
    """None: there is none, since something went wrong that says nothing about the agent. It is never 0 for that. Where
    the agent has destroyed what it would be graded on, it is the declared failure reward, and the fault is `policy`."""
    fault: Fault | None = None
    """Whose fault it is that there is no reward, or that the run ended early."""
    error: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each part took."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """What the agent did: what it called, with what, and what came back."""
    outputs: dict[str, Any] = field(default_factory=dict)
    """What else is worth knowing: the verifier's last lines, the load of the machine."""

    @property
    def counts(self) -> bool:
        """Whether it says something about the agent."""
        return self.reward is not None

    def failed(self, error: Exception) -> Result:
        """The same, without a reward because of an error; with the failure reward where the error is the agent's."""
        self.fault = error.fault if isinstance(error, AEnvError) else "infra"
        ended_by_agent = isinstance(error, InstanceEnded | StateDestroyed) and error.fault == "policy"
        self.reward = FAILURE if ended_by_agent else None
        self.error = error.message if isinstance(error, AEnvError) else f"{type(error).__name__}: {error}"
        return self

    def as_json(self) -> dict[str, Any]:
        """As it is saved."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Result:
        """As it was saved."""
        return cls(**document)


@dataclass(frozen=True, slots=True)
class BenchJob:
    """One task to run."""

    task: str
    agent: str
    """One of the benchmark's own, or a command."""
    folder: Path
    """For what it leaves behind: it is there, and nobody else's."""


class Benchmark(ABC):
    """Tasks of one kind. What it is opened with are texts, so that a run can be taken up again as it was begun."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for people."""
    agents: ClassVar[Mapping[str, str]]
    """Those that it brings: name, and what it does."""
    options: ClassVar[Mapping[str, str]] = {}
    """What it can be opened with: name, and what it means."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.given = dict(options)

    @abstractmethod
    def tasks(self) -> Sequence[str]:
        """The names of all tasks that were asked for.

        Raises:
            UsageError, ConfigError: there are none, or they cannot be read.
        """

    @abstractmethod
    async def run(self, job: BenchJob) -> Result:
        """Do one task. An error that it raises becomes a result without a reward."""

    async def grade(self, job: BenchJob) -> Result:
        """Grade once more what an earlier `run` has left in the job's folder.

        Raises:
            UsageError: this benchmark keeps nothing to grade, or nothing is there.
        """
        raise UsageError(f"{self.name} keeps no state that could be graded again")

    def nothing(self) -> Mapping[str, float]:
        """The rewards that doing nothing gets, for the tasks where that is known."""
        return {}

    async def close(self) -> None:
        """Let go of what it holds."""
        return
