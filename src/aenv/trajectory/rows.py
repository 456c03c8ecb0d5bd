"""Index rows from events, and summaries from index rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aenv.storage.episode_index import ENDED, RUNNING, UNFINISHED, EpisodeRow, RunRow
from aenv.trajectory.events import EpisodeSummary, Event, RunRecord, encode, score_of, storable

_FROM_BEGIN = ("environment", "agent", "model", "seed", "labels", "parents")
_FROM_END = ("reward", "failure_reason", "fault", "error")


def begun(begin: Event, writer: str | None) -> EpisodeRow:
    """Return the row of a running episode."""
    return EpisodeRow(
        id=begin["episode"],
        run=storable(begin["run"]),
        task=storable(begin["task"]["id"]),
        sample=begin["sample"],
        attempt=begin["attempt"],
        state=RUNNING,
        began=begin["at"],
        about=encode(_chosen(begin, _FROM_BEGIN)),
        writer=writer,
    )


def closed(begin: Event, last: Event, events: int) -> EpisodeRow:
    """Return the row of an episode that is over: ended if ``last`` is its end, else unfinished."""
    row = replace(begun(begin, None), events=events)
    if last.get("kind") != "end":
        return replace(row, state=UNFINISHED)
    tokens = last.get("tokens") or {}
    return replace(
        row,
        state=ENDED,
        outcome=last["outcome"],
        final=bool(last.get("final", True)),
        reward=score_of(last["score"] if last.get("score") is not None else last.get("reward")),
        seconds=last.get("seconds"),
        steps=last.get("steps"),
        input_tokens=tokens.get("input"),
        output_tokens=tokens.get("output"),
        cost=last.get("cost"),
        about=encode({**_chosen(begin, _FROM_BEGIN), **_chosen(last, _FROM_END)}),
    )


def summary(row: EpisodeRow) -> EpisodeSummary:
    """Return the summary of a stored episode."""
    about = json.loads(row.about)
    tokens = {"input": row.input_tokens, "output": row.output_tokens}
    return EpisodeSummary(
        id=row.id,
        run=row.run,
        task=row.task,
        sample=row.sample,
        attempt=row.attempt,
        state=row.state,  # type: ignore[arg-type]
        began=row.began,
        outcome=row.outcome,
        final=row.final,
        score=row.reward,
        reward=about.get("reward"),
        seconds=row.seconds,
        steps=row.steps,
        tokens={name: count for name, count in tokens.items() if count is not None},
        cost=row.cost,
        events=row.events,
        environment=about.get("environment") or {},
        agent=about.get("agent") or {},
        model=about.get("model"),
        seed=about.get("seed"),
        labels=about.get("labels") or {},
        parents=tuple(about.get("parents") or ()),
        failure_reason=about.get("failure_reason"),
        fault=about.get("fault"),
        error=about.get("error"),
    )


def run_row(run: RunRecord) -> RunRow:
    """Return the row of a run."""
    return RunRow(run.id, storable(run.title), encode(dict(run.request)), encode(dict(run.labels)), run.created)


def run_record(row: RunRow) -> RunRecord:
    """Return a stored run."""
    return RunRecord(row.id, row.title, json.loads(row.request), json.loads(row.labels), row.created)


def _chosen(event: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: event[name] for name in names if event.get(name) not in (None, {}, [])}
