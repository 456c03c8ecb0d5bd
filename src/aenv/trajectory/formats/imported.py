"""Episodes that come from files of other programs, on their way into a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aenv.trajectory.events import UNGRADED, EpisodeKey, Event
from aenv.trajectory.store import TrajectoryStore


@dataclass(frozen=True, slots=True)
class ImportedEpisode:
    """An episode that was read from a file."""

    task: str
    begin: Mapping[str, Any]
    events: Sequence[Event]
    """Events without ``seq``; with ``at`` where the file has times."""
    end: Mapping[str, Any] | None
    """Fields of the end; None if the episode did not end."""
    run: str | None = None
    sample: int = 0
    attempt: int = 0
    subagents: Sequence[ImportedEpisode] = ()
    """Episodes of agents that this one's agent has started."""

    def store(self, store: TrajectoryStore, run: str) -> list[str]:
        """Record the episode in a run, then those of its subagents, and return their ids.

        It is marked as imported, so that a replay does not run the code of an environment because the file names it.
        """
        at = self.begin.get("at") or next((event["at"] for event in self.events if "at" in event), None)
        begin = _without_folder({**self.begin, "at": at} if at is not None else self.begin)
        begin = {**begin, "imported": True}
        recorder = store.record(EpisodeKey(run, self.task, self.sample, self.attempt), begin)
        last = at
        for event in self.events:
            last = event.get("at", last)
            fields = {name: value for name, value in event.items() if name not in ("kind", "seq")}
            recorder.append(event["kind"], **({"at": last} if last is not None else {}), **_without_at(fields))
        if self.end is None:
            recorder.end("cancelled", final=False, error="the imported episode had not ended")
            return [recorder.episode_id, *self._store_subagents(store, run, recorder.episode_id)]
        end = {name: value for name, value in self.end.items() if value is not None}
        outcome, reward = end.pop("outcome"), end.pop("reward", None)
        steps = sum(event["kind"] == "call" and event.get("of") == "tool" for event in self.events)
        fields = {"at": last, "seconds": _span(at, last), "steps": steps, **end}
        recorder.end(outcome, None if outcome in UNGRADED else reward, **fields)
        return [recorder.episode_id, *self._store_subagents(store, run, recorder.episode_id)]

    def _store_subagents(self, store: TrajectoryStore, run: str, parent: str) -> Iterator[str]:
        """Store the episodes of subagents. None of them is the result of a sample."""
        for each in self.subagents:
            begin = {**each.begin, "parents": [{"kind": "subagent", "episode": parent}]}
            end = None if each.end is None else {**each.end, "final": False}
            yield from replace(each, begin=begin, end=end).store(store, run)


def _without_folder(begin: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the begin without a datasource that is a folder: a replay would mount that folder of this machine."""
    task = begin.get("task")
    if not isinstance(task, Mapping) or not str(task.get("datasource") or "").startswith("/"):
        return begin
    return {**begin, "task": {name: value for name, value in task.items() if name != "datasource"}}


def _without_at(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "at"}


def _span(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else round(last - first, 6)
