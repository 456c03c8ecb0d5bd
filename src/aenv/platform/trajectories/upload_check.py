"""Validation of uploaded episodes: events in order, from a beginning to at most one end."""

from __future__ import annotations

import math
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from aenv.errors import InvalidArguments, UsageError
from aenv.schema.trajectories import StoredEpisode
from aenv.trajectory import rows
from aenv.trajectory.events import KINDS, Event, check_end

MAX_NAME = 1024
MAX_BEGIN = 1 << 20
"""Bytes of what the index keeps of an episode: its environment, agent, labels, reward and error."""


class UploadCheck:
    """Checks the events of one episode, one after the other."""

    def __init__(self, episode: str) -> None:
        self._episode = episode
        self._begin: Event | None = None
        self._last: Event = {}
        self._count = 0

    def add(self, line: bytes) -> None:
        """Check the next event.

        Raises:
            InvalidArguments: it is not one, or not the next.
        """
        try:
            event = from_json(line, allow_inf_nan=False)
        except ValueError:
            raise InvalidArguments(f"event {self._count} is not JSON") from None
        if not isinstance(event, dict) or event.get("seq") != self._count:
            raise InvalidArguments(f"event {self._count} does not have that number as its 'seq'")
        if event.get("kind") not in KINDS or not _is_number(event.get("at")):
            raise InvalidArguments(f"event {self._count} has no valid 'kind' or 'at'")
        if (event["kind"] == "begin") != (self._count == 0):
            raise InvalidArguments("the first event, and only that, must be the beginning")
        if self._last.get("kind") == "end":
            raise InvalidArguments("there are events after the end")
        if self._begin is None:
            _check_begin(event, self._episode)
            self._begin = event
        elif event["kind"] == "end":
            _check_end(event)
        self._last = event
        self._count += 1

    def episode(self) -> StoredEpisode:
        """Return the episode without its events.

        Raises:
            InvalidArguments: there are no events, or the summary is too large.
        """
        if self._begin is None:
            raise InvalidArguments("an episode needs at least its beginning")
        try:
            row = rows.closed(self._begin, self._last, self._count)
            found = StoredEpisode.model_validate(rows.summary(row).as_json())
        except ValidationError as error:
            where = ".".join(str(each) for each in error.errors(include_input=False)[0]["loc"])
            raise InvalidArguments(f"the beginning or the end of the episode is malformed: {where}") from None
        except (TypeError, ValueError, AttributeError, KeyError):
            raise InvalidArguments("the beginning or the end of the episode is malformed") from None
        if len(row.about) > MAX_BEGIN:
            raise InvalidArguments(f"environment, agent, labels, reward and error have at most {MAX_BEGIN} bytes")
        return found


def _check_begin(event: Event, episode: str) -> None:
    task = event.get("task")
    if event.get("episode") != episode:
        raise InvalidArguments(f"these are the events of episode {event.get('episode')!r:.200}, not of {episode}")
    if not isinstance(task, dict):
        raise InvalidArguments("the beginning names no task")
    for name, value in (("run", event.get("run")), ("task", task.get("id"))):
        if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
            raise InvalidArguments(f"the {name} of an episode needs an id of at most {MAX_NAME} characters")
    for name in ("sample", "attempt"):
        value = event.get(name)
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise InvalidArguments(f"{name}: expected a number from 0 on")
    for name in ("environment", "agent", "labels"):
        if not isinstance(event.get(name) or {}, dict):
            raise InvalidArguments(f"{name}: expected an object")


def _check_end(event: Event) -> None:
    try:
        check_end(str(event.get("outcome")), event.get("reward"))
    except UsageError as error:
        raise InvalidArguments(error.message) from None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e12
