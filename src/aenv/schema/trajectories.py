"""Models of stored trajectories in the platform's HTTP API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from aenv.schema.instances import Message

EPISODES_PER_PAGE = 1000
EVENTS_PER_PAGE = 1000
EPISODE_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
MAX_EPISODE_BYTES = 2 << 30
"""Bytes of the events of an episode, before compression."""
MAX_EVENT_BYTES = 16 << 20
"""Bytes of one event."""
MAX_RUN_BYTES = 1 << 20
"""Bytes of the request of a run."""

EpisodeState = Literal["running", "unfinished", "ended"]
EpisodeOutcome = Literal["ok", "policy", "env", "infra", "timeout", "user", "cancelled"]


class _Model(Message):
    model_config = ConfigDict(use_attribute_docstrings=True)


class StoredEpisode(_Model):
    """An episode without its events."""

    id: str
    run: str
    task: str
    sample: int = 0
    attempt: int = 0
    state: EpisodeState
    """`running`: a rollout of this platform is recording it. `unfinished`: its recording ended before it did."""
    began: float
    """Unix timestamp, in seconds."""
    outcome: str | None = None
    final: bool = False
    """True: it is the result of its sample."""
    score: float | None = None
    """The reward as one number."""
    reward: Any = None
    """Null if there is none, which is never the same as 0."""
    seconds: float | None = None
    steps: int | None = None
    tokens: dict[str, int] = Field(default_factory=dict)
    cost: float | None = None
    events: int | None = None
    """Number of events."""
    environment: dict[str, Any] = Field(default_factory=dict)
    agent: dict[str, Any] = Field(default_factory=dict)
    model: Any = None
    seed: Any = None
    labels: dict[str, Any] = Field(default_factory=dict)
    parents: list[dict[str, Any]] = Field(default_factory=list)
    failure_reason: str | None = None
    fault: str | None = None
    error: Any = None
    owner: str = ""
    bytes: int = 0
    """Compressed size, which counts in the owner's quota."""
    digest: str = ""
    """SHA-256 of the events as they were uploaded."""


class EpisodePage(_Model):
    """A page of episodes."""

    items: list[StoredEpisode] = Field(default_factory=list)
    next: str | None = None
    """Cursor of the next page; null at the end. A page with fewer episodes than its limit can have one, too."""


class EventPage(_Model):
    """A page of the events of one episode."""

    items: list[dict[str, Any]] = Field(default_factory=list)
    next: int | None = None
    """`start` of the next page; null if the episode has no more events now."""


class RunUpload(_Model):
    """A run, without its episodes."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    id: Annotated[str, Field(min_length=1, max_length=1024)]
    title: Annotated[str, Field(max_length=4096)] = ""
    request: dict[str, Any] = Field(default_factory=dict)
    """Request of the run: environment, agent, tasks, samples, model."""
    labels: dict[str, str] = Field(default_factory=dict)
    created: Annotated[float, Field(ge=0, lt=1e12)]
    """Unix timestamp, in seconds."""


class StoredRun(_Model):
    """A stored run."""

    id: str
    title: str = ""
    request: dict[str, Any] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    created: float
    owner: str = ""
    episodes: dict[str, int] = Field(default_factory=dict)
    """Number of episodes by outcome, or by state where they have none."""


class RunPage(_Model):
    """A page of runs."""

    items: list[StoredRun] = Field(default_factory=list)
    next: str | None = None
    """Cursor of the next page; null at the end."""


class PruneRequest(_Model):
    """Episodes to delete."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    run: str | None = None
    task: str | None = None
    outcome: EpisodeOutcome | None = None
    before: float | None = None
    """Only episodes that began before this Unix timestamp."""
    owner: str | None = None
    """Only episodes of this user; without it, those of the caller."""
    dry_run: bool = False
    """Only count them."""
    after: str | None = None
    """`next` of the previous answer."""


class PruneAnswer(_Model):
    """Result of one step of deleting episodes."""

    episodes: int
    bytes: int
    next: str | None = None
    """Repeat the request with this as `after` until it is null: one request deletes a limited number of episodes."""
