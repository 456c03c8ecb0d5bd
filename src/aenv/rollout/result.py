"""The result of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from aenv.trajectory import Outcome


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """How one sample of one task ended, after retries."""

    task: str
    sample: int
    outcome: Outcome
    reward: Any = None
    """Reward as the environment gave it. None if there is none, which is never the same as 0."""
    score: float | None = None
    """Number of the reward that counts in statistics."""
    failure_reason: str | None = None
    """Why the reward is the environment's failure reward; None for a computed reward."""
    error: str = ""
    fault: str | None = None
    budget: str | None = None
    """The budget that was used up, if the outcome is ``timeout``."""
    episode: str = ""
    """Identifier of the recorded episode."""
    run: str = ""
    attempt: int = 0
    """Number of the attempt, from 0; each retry after an infra failure is another one."""
    seconds: float = 0.0
    steps: int = 0
    """Tool calls of the agent."""
    tokens: dict[str, int] = field(default_factory=lambda: {"input": 0, "output": 0})
    cost: float = 0.0
    final: bool = True
    """False for an attempt that is repeated. `rollout` yields only final ones."""
    resumed: bool = False
    """True if the episode was recorded before this rollout was resumed."""

    user: Mapping[str, Any] | None = None
    """User of the episode: ``kind``, ``model``, and digests of the ``prompt`` and the ``profile``. None: no user."""

    simulation: Mapping[str, Any] | None = None
    """The simulated world: ``model``, ``prompt``, ``tools``, ``perturbations``, ``fidelity``. None: it was real."""

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return asdict(self)
