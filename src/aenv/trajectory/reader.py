"""Read interface of a store of trajectories: the local one, and that of a platform."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aenv.trajectory.events import EpisodeSummary, Event, RunRecord


@dataclass(frozen=True, slots=True)
class PrunedEpisodes:
    """Number and size of the episodes that were removed, or would be."""

    episodes: int
    bytes: int


class EpisodeReader(ABC):
    """A store of trajectories that can be read, and from which episodes can be removed.

    `TrajectoryStore` is the one in a folder, `PlatformTrajectories` that of a platform.
    """

    foreign: bool = False
    """True: other people may have written its episodes, so no code is run because an episode names it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    @abstractmethod
    def place(self) -> str:
        """Return where the store is: a folder or a URL."""

    @abstractmethod
    def close(self) -> None:
        """Release what the store holds."""

    @abstractmethod
    def runs(self, *, after: str | None = None, limit: int = 100) -> list[RunRecord]:
        """Return runs, newest first; ``after`` is the last id of the page before."""

    @abstractmethod
    def run(self, id: str) -> RunRecord:
        """Return one run.

        Raises:
            NotFound: there is none of that id.
        """

    @abstractmethod
    def episodes(
        self,
        run: str | None = None,
        task: str | None = None,
        outcome: str | None = None,
        *,
        state: str | None = None,
        final: bool | None = None,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[EpisodeSummary]:
        """Return a page of episodes in the order of their beginning; ``after`` is the last id of the page before."""

    def all_episodes(self, run: str | None = None, task: str | None = None, **filters: Any) -> Iterator[EpisodeSummary]:
        """Yield all episodes, read page by page."""
        after = None
        while page := self.episodes(run, task, after=after, limit=1000, **filters):
            yield from page
            after = page[-1].id

    @abstractmethod
    def episode(self, id: str) -> EpisodeSummary:
        """Return one episode by its id or by an unambiguous beginning of it.

        Raises:
            NotFound: there is none, or more than one.
        """

    @abstractmethod
    def counts_of(self, run: RunRecord) -> dict[str, int]:
        """Return the number of a run's episodes by outcome, or by state where they have none."""

    @abstractmethod
    def events(self, id: str, start: int = 0, limit: int | None = None) -> Iterator[Event]:
        """Yield the events of an episode, of a running one those recorded so far.

        Raises:
            NotFound: there is no such episode.
        """

    @abstractmethod
    def prune(
        self,
        run: str | None = None,
        task: str | None = None,
        outcome: str | None = None,
        *,
        before: float | None = None,
        dry_run: bool = False,
    ) -> PrunedEpisodes:
        """Remove episodes that are not running, and give their space back.

        Args:
            run: Only those of this run.
            task: Only those of this task.
            outcome: Only those with this outcome.
            before: Only those that began before this time, in seconds since 1970.
            dry_run: Only count them.
        """
