"""Index of the episodes and runs that the platform keeps, in its record store.

Keys contain the owner, so two users may store episodes and runs of the same id. Entries of all indexes have the same
sort key, the time at which the episode began; so any combination of filters is one query, and a page costs the same
however many episodes there are.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from pydantic import BaseModel, Field

from aenv.errors import InvalidArguments
from aenv.platform.trajectories.episode_parts import StoredPart
from aenv.schema.trajectories import StoredEpisode, StoredRun
from aenv.storage.base import SEPARATOR, Put, Query, position

EPISODES, PARTS, RUNS, USAGE = "trajectory", "trajectory-parts", "trajectory-run", "trajectory-usage"
FINALS = "trajectory-final"
"""The episode that is the result of a sample: at most one is."""
UPLOADS = "trajectory-upload"
"""Blobs that are being written or deleted. Whatever is left here by a crash is deleted later."""
DELETED = "trajectory-deleted"
"""Ids of deleted episodes of rollouts, which must not be stored again from a server's own records."""
ALL = "all"


class EpisodeParts(BaseModel):
    """Parts of an episode, in order."""

    parts: list[StoredPart]


class OwnerUsage(BaseModel):
    """Storage that a user's episodes take."""

    bytes: int = 0
    episodes: int = 0


class RunEntry(BaseModel):
    """A run, and the numbers of its episodes."""

    run: StoredRun
    episodes: dict[str, int] = Field(default_factory=dict)

    def count(self, episode: StoredEpisode, by: int) -> None:
        """Add to the number of episodes that ended as this one."""
        name = episode.outcome or episode.state
        self.episodes[name] = self.episodes.get(name, 0) + by
        if self.episodes[name] <= 0:
            del self.episodes[name]

    def shown(self) -> StoredRun:
        """Return the run with its numbers."""
        return self.run.model_copy(update={"episodes": self.episodes})


@dataclass(frozen=True, slots=True)
class EpisodeSelection:
    """Conditions on episodes; None accepts all."""

    owner: str | None = None
    run: str | None = None
    task: str | None = None
    outcome: str | None = None
    state: str | None = None
    final: bool | None = None

    def accepts(self, episode: StoredEpisode) -> bool:
        """Return whether an episode meets the conditions."""
        names = ("owner", "run", "task", "outcome", "state", "final")
        return all(getattr(self, name) in (None, getattr(episode, name)) for name in names)

    def query(self, *, after: str | None, limit: int, newest_first: bool, high: str = "") -> Query:
        """Return the query for a page. ``high``: sort key that all are below.

        Raises:
            InvalidArguments: the cursor is malformed.
        """
        chosen = [f"{name}:{short(value)}" for name, value in (("owner", self.owner), ("run", self.run)) if value]
        chosen += [f"task:{short(self.task)}"] if self.task else []
        chosen += [f"{name}:{value}" for name, value in (("outcome", self.outcome), ("state", self.state)) if value]
        chosen += [] if self.final is None else [f"final:{int(self.final)}"]
        return Query(
            EPISODES,
            tuple(chosen) or (ALL,),
            high=high,
            reverse=newest_first,
            after=None if after is None else parse_cursor(after),
            limit=limit,
        )


def short(text: str) -> str:
    """Return a digest of a name that may have any characters."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def episode_key(owner: str, id: str) -> str:
    """Return the key of an episode."""
    return f"{id}/{short(owner)}"


def run_key(owner: str, id: str) -> str:
    """Return the key of a run."""
    return f"{short(owner)}/{short(id)}"


def sample_key(owner: str, episode: StoredEpisode) -> str:
    """Return the key of the sample that an episode is an attempt of."""
    return f"{run_key(owner, episode.run)}/{short(episode.task)}/{episode.sample}"


def moment(seconds: float) -> str:
    """Return the sort key of a time."""
    return f"{int(seconds * 1000):015d}"


def episode_put(episode: StoredEpisode, expect: int) -> Put:
    """Return the change that writes an episode and its index entries."""
    at = moment(episode.began)
    names = [
        ALL,
        f"owner:{short(episode.owner)}",
        f"run:{short(episode.run)}",
        f"task:{short(episode.task)}",
        f"state:{episode.state}",
        f"final:{int(episode.final)}",
    ]
    if episode.outcome is not None:
        names.append(f"outcome:{episode.outcome}")
    entries = [(name, at) for name in names] + [(f"ids:{short(episode.owner)}", episode.id)]
    key = episode_key(episode.owner, episode.id)
    return Put(EPISODES, key, episode.model_dump_json().encode(), tuple(entries), expect=expect)


def run_put(entry: RunEntry, expect: int) -> Put:
    """Return the change that writes a run and its index entries."""
    run, at = entry.run, moment(entry.run.created)
    entries = tuple((name, at) for name in (ALL, f"owner:{short(run.owner)}", f"id:{short(run.id)}"))
    return Put(RUNS, run_key(run.owner, run.id), entry.model_dump_json().encode(), entries, expect=expect)


def cursor(place: str | None) -> str | None:
    """Return a position in an index as text for a URL."""
    return None if place is None else place.replace(SEPARATOR, ":")


def cursor_of(episode: StoredEpisode) -> str:
    """Return the cursor after an episode."""
    return position(moment(episode.began), episode_key(episode.owner, episode.id)).replace(SEPARATOR, ":")


def is_run_cursor(text: str) -> bool:
    """Return whether a text is a cursor of a page of runs, and not the id of a run."""
    return re.fullmatch(r"[0-9]{15}:[0-9a-f]{24}/[0-9a-f]{24}", text) is not None


def parse_cursor(text: str) -> str:
    """Return the position that a cursor names.

    Raises:
        InvalidArguments: it is none.
    """
    at, colon, key = text.partition(":")
    if not (colon and at.isascii() and at.isdigit() and key.isascii() and key.isprintable() and len(text) < 300):
        raise InvalidArguments(f"invalid after {text!r:.100}; expected 'next' of a page, or the id of an episode")
    return position(at, key)
