"""Models of served rollouts in the platform's HTTP API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from aenv.schema.instances import Message
from aenv.schema.ref import EnvRef
from aenv.schema.tasks import Task, TaskLimits

MAX_TASKS = 10_000
MAX_SAMPLES = 1024


class _Strict(Message):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ModelPrice(_Strict):
    """Price of a model's tokens, per million."""

    input: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    output: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelSpec(_Strict):
    """A model endpoint."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    url: Annotated[str, Field(pattern=r"^https?://[!-~]+$", max_length=2048)]
    """Base URL, like `https://api.openai.com/v1`. The platform's administrator allows which ones may be used."""
    api: Literal["chat", "responses", "anthropic"] = "chat"
    key: Annotated[str, Field(max_length=4096)] = ""
    """API key. It is kept in memory only, and never recorded."""
    stream: bool = True
    price: ModelPrice | None = None
    """Required by a budget for cost, unless the model's server reports costs."""


class RolloutRequest(_Strict):
    """A rollout: an agent over tasks and samples."""

    environment: Annotated[str, Field(min_length=1, max_length=512)]
    """`name`, `name@version` or a range of versions."""
    task: Task | None = None
    """The only task."""
    tasks: Annotated[list[Task], Field(min_length=1, max_length=MAX_TASKS)] | None = None
    """The tasks. Without either, those that the environment lists."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of tasks."""
    samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    """Episodes for each task."""
    agent: Literal["loop", "gold", "nop"] = "loop"
    """`loop` calls tools as the model asks; `gold` replays the tasks' solutions; `nop` does nothing."""
    model: ModelSpec | None = None
    """Required by `loop`."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    """Sampling parameters of the model, such as `temperature`, `logprobs` or `return_token_ids`."""
    budget: TaskLimits = TaskLimits()
    """Budgets of each episode, where its task has none."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Maximum number of retries of an episode that failed for infra reasons."""
    concurrency: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Episodes at the same time; default: adapted to the load."""
    seed: int | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    request_id: Annotated[str, Field(max_length=256)] = ""
    """Makes the request idempotent: the same id again continues the same rollout, and repeats no episode."""
    baseline: bool = False
    """Run an agent that does nothing, once for each task, after the others: its mean reward is the floor."""
    trace: bool = True
    """Send the events of each episode with its result."""
    detached: bool = False
    """Go on although nobody listens. Otherwise a rollout is cancelled when nobody has listened for ten minutes."""

    @field_validator("environment")
    @classmethod
    def _is_a_reference(cls, value: str) -> str:
        EnvRef.parse(value)
        return value

    @model_validator(mode="after")
    def _fits(self) -> RolloutRequest:
        if self.task is not None and self.tasks is not None:
            raise ValueError("give either task or tasks")
        for task in self.all_tasks() or ():
            if task.environment is not None:
                EnvRef.parse(task.environment)
        if self.agent == "loop" and self.model is None:
            raise ValueError("model: the agent 'loop' needs one")
        return self

    def all_tasks(self) -> list[Task] | None:
        """Return the tasks that the request names; None: those of the environment."""
        return [self.task] if self.task is not None else self.tasks


class RolloutInfo(Message):
    """State of a rollout."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    state: Literal["running", "done", "cancelled", "failed"]
    environment: str
    owner: str = ""
    total: int = 0
    """Number of episodes; 0 until the tasks are known."""
    done: int = 0
    running: int = 0
    outcomes: dict[str, int] = Field(default_factory=dict)
    """Finished episodes by outcome."""
    mean_reward: float | None = None
    """Mean of the rewards that there are; absent ones do not count."""
    do_nothing: float | None = None
    """Mean reward of doing nothing on the same tasks, where the request asked for it with `baseline`."""
    error: str = ""
    """Why the rollout failed."""
    labels: dict[str, str] = Field(default_factory=dict)
    created_at: float = 0.0
    """Unix timestamp, in seconds."""


class ServedEpisode(Message):
    """A finished episode."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    number: int
    """Position in the stream, from 0."""
    task: str
    sample: int
    outcome: str
    reward: Any = None
    """Null if there is none, which is never the same as 0."""
    score: float | None = None
    failure_reason: str | None = None
    error: str = ""
    fault: str | None = None
    budget: str | None = None
    episode: str = ""
    """Id of the recorded episode."""
    attempt: int = 0
    seconds: float = 0.0
    steps: int = 0
    tokens: dict[str, int] = Field(default_factory=dict)
    cost: float = 0.0
    events: list[dict[str, Any]] | None = None
    """Recorded events, with token ids and log-probabilities where the model's server sent them."""
