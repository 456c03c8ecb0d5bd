"""The words of a trajectory: events, keys and summaries of episodes, and runs.

An event is a JSON object with ``seq`` (from 0), ``at`` (seconds since 1970), ``kind`` and the fields of that kind.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from aenv.errors import UsageError

Event: TypeAlias = dict[str, Any]
Kind = Literal["begin", "message", "call", "result", "state", "usage", "note", "end"]
KINDS: frozenset[str] = frozenset(get_args(Kind))
Outcome = Literal["ok", "policy", "env", "infra", "timeout", "user", "cancelled"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
UNGRADED: frozenset[str] = frozenset({"env", "infra", "user", "cancelled"})
"""Outcomes that say nothing about the agent: their reward is absent, never 0."""

_SCORES = ("reward", "score", "total_reward", "total")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A set of episodes that belong together."""

    id: str
    title: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Request of the run: environment, agent, tasks, samples, model. Resuming a run compares it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: float = field(default_factory=time.time)

    def as_json(self) -> dict[str, Any]:
        """Return the run as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Run, task, sample and attempt number that identify an episode."""

    run: str
    task: str
    sample: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """An episode without its events."""

    id: str
    run: str
    task: str
    sample: int
    attempt: int
    state: Literal["running", "unfinished", "ended"]
    """``unfinished``: the program that recorded it ended before the episode did."""
    began: float
    outcome: str | None = None
    final: bool = False
    """True: it is the result of its sample. A retried attempt is not; of one sample at most one episode is."""
    score: float | None = None
    """The reward as one number, if it is one or has one (`score_of`)."""
    reward: Any = None
    seconds: float | None = None
    steps: int | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    cost: float | None = None
    events: int | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)
    model: Any = None
    seed: Any = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    parents: tuple[Mapping[str, Any], ...] = ()
    failure_reason: str | None = None
    fault: str | None = None
    error: Any = None

    @property
    def key(self) -> EpisodeKey:
        """Return what the episode is an attempt of."""
        return EpisodeKey(self.run, self.task, self.sample, self.attempt)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return {**asdict(self), "parents": [dict(each) for each in self.parents]}


def new_id(prefix: str = "ep") -> str:
    """Return a new unique id. Ids of later milliseconds sort after earlier ones."""
    number = (time.time_ns() // 1_000_000) << 50 | secrets.randbits(50)
    digits = []
    for _ in range(19):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return f"{prefix}-{''.join(reversed(digits))}"


def score_of(reward: Any) -> float | None:
    """Return a reward as one number: itself, its ``reward``, ``score``, ``total_reward`` or ``total``, or its only one.

    None if it has none, or several of which none has such a name.
    """
    if isinstance(reward, Mapping):
        named = [reward[name] for name in _SCORES if name in reward]
        values = named[:1] or [value for value in reward.values() if isinstance(value, bool | int | float)]
        return score_of(values[0]) if len(values) == 1 and not isinstance(values[0], Mapping) else None
    if isinstance(reward, bool | int | float) and math.isfinite(reward):
        return float(reward)
    return None


def check_end(outcome: str, reward: Any) -> None:
    """Check that the outcome exists and may have a reward.

    Raises:
        UsageError: it may not.
    """
    if outcome not in OUTCOMES:
        raise UsageError(f"invalid outcome {outcome!r}; expected one of {', '.join(OUTCOMES)}")
    if outcome in UNGRADED and reward is not None:
        raise UsageError(f"an episode that ends as {outcome!r} has no reward, but one was given: {reward!r}")


def encode(event: Mapping[str, Any]) -> str:
    """Return an event as one line of JSON, without the newline. Numbers that JSON lacks become null."""
    try:
        line = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
    except ValueError:
        line = json.dumps(_finite(event), ensure_ascii=False, separators=(",", ":"), default=_plain)
    return storable(line)


def storable(text: str) -> str:
    """Return text that UTF-8 can hold: a lone surrogate, which JSON may name, becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _plain(value: Any) -> Any:
    """Return what stands for a value that JSON has no word for."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes>"
    for name in ("model_dump", "tolist"):  # pydantic; numpy and torch
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
