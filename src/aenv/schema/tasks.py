"""Tasks: what an agent is asked to do in an environment, how the instance is started, and how it is graded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_ALIASES = {"prompt": "instruction", "task_id": "id"}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskCall(_Part):
    """A function of the environment, to call before the agent starts."""

    function: str
    arguments: dict[str, Any] = {}


class StateProbe(_Part):
    """A call that shows a part of the environment's state and changes nothing, and what it must show in the end."""

    tool: str | None = None
    function: str | None = None
    """The function to call; one of ``tool`` and ``function`` is given."""
    arguments: dict[str, Any] = {}
    ignore: list[str] = []
    """Paths in the observation that are not compared, such as ``value/entries/*/modified``."""
    expected: Any = None
    """The observation: ``{"value": RESULT}``, or ``{"error": true}`` if the call fails."""

    @model_validator(mode="after")
    def _one(self) -> StateProbe:
        if (self.tool is None) == (self.function is None):
            raise ValueError("a probe names a tool or a function")
        return self


class TaskReward(_Part):
    """The reward that grades the task, and its arguments. Agents never see them."""

    name: str | None = None
    """Name of the reward, if the environment has several."""
    arguments: dict[str, Any] = {}
    state: list[StateProbe] = []
    """If given, these grade the task instead of a reward of the environment: 1 if all observations are as expected."""


class TaskStep(_Part):
    """A tool call of a known solution."""

    tool: str
    arguments: dict[str, Any] = {}


class TaskLimits(_Part):
    """Budgets of one episode. None: no limit of its own."""

    steps: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of tool calls."""
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of tokens, read and written, over all model requests."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """Time for the agent, without the start of the instance and without grading."""
    cost: Annotated[float, Field(gt=0)] | None = None
    """Maximum cost of all model requests, in the currency of the prices given."""

    def over(self, other: TaskLimits) -> TaskLimits:
        """Return these limits, with those of ``other`` where this has none."""
        return TaskLimits(**{**other.model_dump(exclude_none=True), **self.model_dump(exclude_none=True)})


class ScriptedAnswer(_Part):
    """An answer of a scripted user, given once."""

    say: str
    when: str = ""
    """Regular expression that the agent's message must contain; empty: any message."""


class UserProfile(_Part):
    """A simulated user of a task: what they want, who they are, what they know. Agents never see it."""

    goal: str = ""
    """Goal of the user; default: the instruction of the task."""
    persona: str = ""
    """Description of the user, and how they talk."""
    knowledge: dict[str, Any] = {}
    """Facts that the user tells when asked, such as ``{"order number": 17}``."""
    patience: Annotated[int, Field(ge=1, le=1000)] = 20
    """Messages of the agent that the user answers; then they leave."""
    opening: str = ""
    """First message of the user; default: the goal of a scripted user, and the choice of a model."""
    script: list[ScriptedAnswer] = []
    """Answers of a scripted user; the first that fits and was not given yet is the next."""


class Task(_Part):
    """A task of an environment.

    Agents see ``id``, ``instruction`` and ``metadata``. They never see ``reward``, ``solution``,
    ``user_profile`` and ``hidden``.

    Example:
        ```python
        Task(id="milk", instruction="Note: buy milk", reward={"arguments": {"words": ["milk"]}})
        ```
    """

    id: str = Field(min_length=1)
    instruction: str = ""
    """Instruction for the agent. If empty, the result of ``setup``: a text, or a dict with ``instruction``."""
    environment: str | None = None
    """Environment of the task, if it is not that of the rollout."""
    variables: dict[str, str] = {}
    """Environment variables of the instance."""
    arguments: list[str] = []
    """Command line arguments of the instance."""
    datasource: str = ""
    """Data that the instance is for."""
    seed: int | None = None
    """Seed of the environment, which it reads from the variable ``AENV_SEED``."""
    setup: TaskCall | None = None
    """Function to call before the agent starts."""
    limits: TaskLimits = TaskLimits()
    """Budgets of an episode; they take precedence over those of the rollout."""
    metadata: dict[str, Any] = {}
    """Other information that agents may see, such as a difficulty."""
    reward: TaskReward = TaskReward()
    """How the task is graded."""
    solution: list[TaskStep] = []
    """Tool calls that solve the task."""
    user_profile: UserProfile | None = None
    """The simulated user whom the agent talks to. The instruction then tells the agent its role, not the task."""
    hidden: dict[str, Any] = {}
    """Other information that agents must not see, such as an answer."""

    @field_validator("id", mode="before")
    @classmethod
    def _text(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value

    @classmethod
    def of_row(cls, row: Mapping[str, Any], number: int | None = None) -> Task:
        """Return the task of a row of a dataset.

        ``prompt`` and ``task_id`` are other names of ``instruction`` and ``id``. Columns that a task does not have go
        to ``hidden``, because they may be answers. ``number`` is the id of a row without one.

        Raises:
            ValueError: a column has an invalid value, or the id is missing.
        """
        known: dict[str, Any] = {}
        hidden: dict[str, Any] = {}
        for column, value in row.items():
            name = _ALIASES.get(column, column) if _ALIASES.get(column) not in row else column
            if name in cls.model_fields:
                if value is not None:
                    known[name] = value
            else:
                hidden[column] = value
        if hidden:
            known["hidden"] = {**hidden, **known.get("hidden", {})}
        if number is not None:
            known.setdefault("id", str(number))
        return cls.model_validate(known)

    def public(self) -> Task:
        """Return the task without what agents must not see."""
        return self.model_copy(update={"reward": TaskReward(), "solution": [], "user_profile": None, "hidden": {}})

    def as_row(self) -> dict[str, Any]:
        """Return the row of the task, without default values."""
        return self.model_dump(mode="json", exclude_defaults=True)
