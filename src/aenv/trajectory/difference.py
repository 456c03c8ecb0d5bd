"""Compare two episodes: where they part.

Times, durations, token usage and the ids of calls differ between any two episodes and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from aenv.trajectory.events import Event

COMPARED = frozenset({"message", "call", "result", "state"})
_BEGIN = ("environment", "agent", "task", "seed", "model", "sampling")
_IGNORED = frozenset(
    {"seq", "at", "seconds", "usage", "id", "tool_call_id", "prompt_token_ids", "token_ids", "logprobs", "model"}
)


@dataclass(frozen=True, slots=True)
class Parting:
    """The first event in which two episodes differ. One of the two is None if that episode was over."""

    first: Event | None
    second: Event | None
    fields: tuple[str, ...]
    """Names of the fields that differ; empty if only one episode has the event."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The comparison of two episodes."""

    begin: Mapping[str, tuple[Any, Any]]
    """Fields of the beginnings that differ."""
    same: int
    """Number of messages, calls, results and states before the first difference."""
    last_same: Event | None
    parting: Parting | None
    """None if all of them are the same."""
    end: Mapping[str, tuple[Any, Any]]
    """Outcome and reward, where they differ."""

    @property
    def equal(self) -> bool:
        """Return whether the agents did the same, with the same results and reward."""
        return self.parting is None and not self.end

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object."""
        part = self.parting
        return {
            "equal": self.equal,
            "begin": {name: list(pair) for name, pair in self.begin.items()},
            "same": self.same,
            "parting": None if part is None else {"fields": part.fields, "first": part.first, "second": part.second},
            "end": {name: list(pair) for name, pair in self.end.items()},
        }


def compare(first: Iterable[Event], second: Iterable[Event]) -> Difference:
    """Compare the events of two episodes."""
    one, two = _Reading(first), _Reading(second)
    same, last = 0, None
    parting = None
    for left, right in zip_longest(one.steps(), two.steps()):
        fields = _differing(left, right)
        if fields or left is None or right is None:
            parting = Parting(left, right, fields)
            break
        same, last = same + 1, left
    one.drain()
    two.drain()
    return Difference(
        begin=_pairs(one.begin, two.begin, _BEGIN),
        same=same,
        last_same=last,
        parting=parting,
        end=_pairs(one.end, two.end, ("outcome", "reward")),
    )


class _Reading:
    """Pass over the events of an episode that keeps its begin and its end."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = iter(events)
        self.begin: Event = {}
        self.end: Event = {}

    def steps(self) -> Iterator[Event]:
        for event in self._events:
            if event["kind"] == "begin":
                self.begin = event
            elif event["kind"] == "end":
                self.end = event
            elif event["kind"] in COMPARED:
                yield event

    def drain(self) -> None:
        for _ in self.steps():
            pass


def _differing(left: Event | None, right: Event | None) -> tuple[str, ...]:
    if left is None or right is None:
        return ()
    names = [name for name in {**left, **right} if name not in _IGNORED]
    return tuple(name for name in names if _plain(left.get(name)) != _plain(right.get(name)))


def _plain(value: Any) -> Any:
    """Return a value without the ids of calls."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items() if name not in ("id", "tool_call_id")}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _pairs(left: Event, right: Event, names: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    return {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}
