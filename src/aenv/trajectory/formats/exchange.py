"""Export episodes in any format, and import them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aenv.errors import UsageError
from aenv.trajectory.events import EpisodeSummary, Event, encode
from aenv.trajectory.formats.atif import from_atif, to_atif
from aenv.trajectory.formats.chat import to_messages, to_sharegpt
from aenv.trajectory.formats.html_page import write_page
from aenv.trajectory.formats.imported import ImportedEpisode
from aenv.trajectory.formats.inspect_log import read_log, write_log
from aenv.trajectory.formats.training import write_dataset, write_parquet
from aenv.trajectory.reader import EpisodeReader
from aenv.trajectory.store import TrajectoryStore

Episodes = Iterable[tuple[EpisodeSummary, Iterable[Event]]]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of exports."""

    summary: str
    write: Callable[[Path, Episodes], int]
    """Writes episodes to a path and returns how many rows or documents it wrote."""


def export(store: EpisodeReader, ids: Iterable[str], format: str, target: Path) -> int:
    """Write episodes to a file or folder and return how many rows or documents were written.

    Raises:
        UsageError: there is no such format.
        ConfigError: the format needs a package that is not installed.
    """
    chosen: Format = _known(format, FORMATS)
    target.parent.mkdir(parents=True, exist_ok=True)
    return chosen.write(target, ((store.episode(id), store.events(id)) for id in ids))


def import_file(store: TrajectoryStore, path: Path, format: str, run: str | None = None) -> list[str]:
    """Store the episodes of a file, and return their ids.

    Args:
        store: Where to store them.
        path: The file; for ATIF also a folder, of which every document is imported.
        format: ``atif``, ``inspect`` or ``events``.
        run: Run to store them in; by default the recorded one, else one named after the file.

    Raises:
        UsageError: the file has another format.
    """
    found = _known(format, IMPORTS)(path)
    return [id for each in found for id in each.store(store, run or each.run or f"import-{path.stem}")]


# --- writers


def _write_events(path: Path, episodes: Episodes) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for _, events in episodes:
            count += 1
            file.writelines(f"{encode(event)}\n" for event in events)
    return count


def _write_atif(path: Path, episodes: Episodes) -> int:
    """Write one document to a ``.json`` file, or one per episode to a folder."""
    count = 0
    for summary, events in episodes:
        count += 1
        document = json.dumps(to_atif(summary, events), indent=2, ensure_ascii=False)
        if path.suffix == ".json":
            if count > 1:
                raise UsageError("an ATIF file holds one episode", {"hint": "Choose one episode, or name a folder."})
            path.write_text(document, encoding="utf-8")
        else:
            path.mkdir(parents=True, exist_ok=True)
            (path / f"{summary.id}.json").write_text(document, encoding="utf-8")
    return count


def _lines(row: Callable[[EpisodeSummary, Iterable[Event]], dict[str, Any]]) -> Callable[[Path, Episodes], int]:
    def write(path: Path, episodes: Episodes) -> int:
        count = 0
        with path.open("w", encoding="utf-8") as file:
            for summary, events in episodes:
                count += 1
                file.write(f"{encode(row(summary, events))}\n")
        return count

    return write


def _write_inspect(path: Path, episodes: Episodes) -> int:
    if path.suffix != ".json":
        raise UsageError(f"inspect_ai finds its logs by their names; {path.name} must end in .json")
    with path.open("w", encoding="utf-8") as file:
        return write_log(file, episodes)


def _parquet(layout: str) -> Callable[[Path, Episodes], int]:
    return lambda path, episodes: write_parquet(path, layout, episodes)


FORMATS: dict[str, Format] = {
    "atif": Format("ATIF 1.8 of Harbor: one document per episode", _write_atif),
    "openai": Format("messages of OpenAI's Chat Completions, one object per line", _lines(to_messages)),
    "sharegpt": Format("conversations of ShareGPT, one object per line", _lines(to_sharegpt)),
    "verl": Format("parquet for verl", _parquet("verl")),
    "trl": Format("parquet for TRL", _parquet("trl")),
    "areal": Format("parquet for AReaL", _parquet("areal")),
    "datasets": Format(
        "a dataset for datasets.load_from_disk", lambda path, episodes: write_dataset(path, "messages", episodes)
    ),
    "inspect": Format("a log of inspect_ai", _write_inspect),
    "events": Format("the events themselves, one per line", _write_events),
    "html": Format("one HTML page, to look at; two episodes side by side", write_page),
}


# --- readers


def _read_atif(path: Path) -> Iterator[ImportedEpisode]:
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    for file in files:
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UsageError(f"{file} is not JSON: {error}") from None
        if path.is_dir() and not (isinstance(document, dict) and "schema_version" in document):
            continue  # a folder of Harbor holds other documents, too
        yield _with_subagents(document)


def _with_subagents(document: dict[str, Any]) -> ImportedEpisode:
    subagents = [_with_subagents(each) for each in document.get("subagent_trajectories") or ()]
    return replace(from_atif(document), subagents=subagents)


def _read_events(path: Path) -> Iterator[ImportedEpisode]:
    episode: list[Event] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            if event["kind"] == "begin" and episode:
                yield _of_events(episode)
                episode = []
            episode.append(event)
    if episode:
        yield _of_events(episode)


def _of_events(events: list[Event]) -> ImportedEpisode:
    begin = events[0]
    if begin.get("kind") != "begin" or "run" not in begin:
        raise UsageError("these are not events of an episode: the first is not its beginning")
    ended = events[-1]["kind"] == "end"
    own = ("seq", "kind", "episode", "run", "sample", "attempt")
    return ImportedEpisode(
        run=begin["run"],
        task=begin["task"]["id"],
        sample=begin["sample"],
        attempt=begin["attempt"],
        begin={name: value for name, value in begin.items() if name not in own},
        events=events[1 : -1 if ended else None],
        end={name: value for name, value in events[-1].items() if name not in own} if ended else None,
    )


IMPORTS: dict[str, Callable[[Path], Iterator[ImportedEpisode]]] = {
    "atif": _read_atif,
    "inspect": read_log,
    "events": _read_events,
}


def _known(name: str, table: dict[str, Any]) -> Any:
    if name not in table:
        raise UsageError(f"invalid format {name!r}; expected one of {', '.join(table)}")
    return table[name]
