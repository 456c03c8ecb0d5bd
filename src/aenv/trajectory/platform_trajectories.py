"""The trajectories of a platform, read as those of a local store are, and the way to upload local ones."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from aenv.client.platform_client import ApiClient
from aenv.client.trajectories_client import TrajectoriesClient
from aenv.errors import NotFound
from aenv.schema.trajectories import EPISODES_PER_PAGE, EVENTS_PER_PAGE, RunUpload, StoredEpisode, StoredRun
from aenv.trajectory.events import EpisodeSummary, Event, RunRecord
from aenv.trajectory.reader import EpisodeReader, PrunedEpisodes
from aenv.trajectory.store import TrajectoryStore

T = TypeVar("T")

UPLOADS = 8
"""Uploads at the same time."""


class PlatformTrajectories(EpisodeReader):
    """Episodes that a platform keeps: those of its rollouts, and uploaded ones. Not for use in a coroutine.

    Example:
        ```python
        with PlatformTrajectories("https://aenv.example.com", api_key=key) as store:
            for episode in store.episodes(run="run-1"):
                print(episode.id, episode.outcome, episode.reward)
        ```
    """

    foreign = True

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._url = url
        self._loop = asyncio.Runner()
        self._api = ApiClient(url, api_key=api_key)
        self._client = self._api.trajectories
        self._counts: dict[str, dict[str, int]] = {}

    @property
    def place(self) -> str:
        return self._url

    def close(self) -> None:
        self._loop.run(self._api.close())
        self._loop.close()

    def runs(self, *, after: str | None = None, limit: int = 100) -> list[RunRecord]:
        found: list[StoredRun] = []
        while len(found) < limit:
            most = min(limit - len(found), EPISODES_PER_PAGE)
            page = self._ask(self._client.runs(after=after, limit=most))
            found += page.items
            after = page.next
            if after is None:
                break
        return [self._record(each) for each in found]

    def run(self, id: str) -> RunRecord:
        return self._record(self._stored_run(id))

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
        filters = {
            "run": run, "task": task, "outcome": outcome, "state": state, "final": final, "newest_first": newest_first,
        }  # fmt: skip
        return list(islice(self._all(filters, after, min(limit, EPISODES_PER_PAGE)), limit))

    def all_episodes(self, run: str | None = None, task: str | None = None, **filters: Any) -> Iterator[EpisodeSummary]:
        return self._all({"run": run, "task": task, **filters}, None, EPISODES_PER_PAGE)

    def _all(self, filters: dict[str, Any], after: str | None, size: int) -> Iterator[EpisodeSummary]:
        """Yield episodes, read in pages by their cursors: what is deleted meanwhile does not stop it."""
        while True:
            page = self._ask(self._client.list(**filters, after=after, limit=size))
            yield from map(_summary, page.items)
            after = page.next
            if after is None:
                return

    def episode(self, id: str) -> EpisodeSummary:
        return _summary(self._ask(self._client.get(id)))

    def counts_of(self, run: RunRecord) -> dict[str, int]:
        if run.id not in self._counts:
            self.run(run.id)
        return self._counts[run.id]

    def events(self, id: str, start: int = 0, limit: int | None = None) -> Iterator[Event]:
        at: int | None = start
        left = limit
        while at is not None and left != 0:
            page = self._ask(self._client.events(id, at, EVENTS_PER_PAGE if left is None else left))
            yield from page.items
            at, left = page.next, None if left is None else left - len(page.items)

    def prune(
        self,
        run: str | None = None,
        task: str | None = None,
        outcome: str | None = None,
        *,
        before: float | None = None,
        dry_run: bool = False,
    ) -> PrunedEpisodes:
        fields = {"run": run, "task": task, "outcome": outcome, "before": before, "dry_run": dry_run}
        found = self._ask(self._client.prune(**fields))
        return PrunedEpisodes(found.episodes, found.bytes)

    def push(self, store: TrajectoryStore, episodes: Iterable[EpisodeSummary]) -> tuple[int, int]:
        """Upload episodes of a local store. Those that the platform has already are left as they are.

        Args:
            store: The local store.
            episodes: What to upload; running episodes are left out.

        Returns:
            The number of uploaded episodes, and of those that the platform had already.

        Raises:
            Conflict: the platform has an episode of one of the ids with other events.
        """
        return self._loop.run(_push(self._client, store, episodes))

    def _stored_run(self, id: str) -> StoredRun:
        page = self._ask(self._client.runs(run=id, limit=1))
        if not page.items:
            raise NotFound(f"no such run: {id}", details={"hint": "List the runs: aenv trajectory list --runs"})
        return page.items[0]

    def _record(self, run: StoredRun) -> RunRecord:
        self._counts[run.id] = run.episodes
        return RunRecord(run.id, run.title, run.request, run.labels, run.created)

    def _ask(self, request: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run(request)
        except NotFound as error:
            if error.message.startswith("nothing at "):
                raise NotFound(
                    f"the platform at {self._url} keeps no trajectories",
                    details={"hint": "Name your local store with --store FOLDER, or update the platform."},
                ) from error
            raise


async def _push(
    client: TrajectoriesClient,
    store: TrajectoryStore,
    episodes: Iterable[EpisodeSummary],
) -> tuple[int, int]:
    rest = iter(episodes)
    runs: set[str] = set()
    new = known = 0

    async def work() -> None:
        nonlocal new, known
        for episode in rest:
            if episode.state == "running" or not episode.events:
                continue
            if episode.run not in runs:
                runs.add(episode.run)
                await client.put_run(_upload_of(store.run(episode.run)))
            lines = _Lines(store, episode.id)
            if await _has(client, episode.id, lines):
                known += 1
            else:
                await client.put(episode.id, lines)
                new += 1

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(UPLOADS):
                tasks.create_task(work())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return new, known


class _Lines:
    """The events of a stored episode, which can be iterated several times."""

    def __init__(self, store: TrajectoryStore, id: str) -> None:
        self._store, self._id = store, id

    def __iter__(self) -> Iterator[bytes]:
        return self._store.lines(self._id)

    def digest(self) -> str:
        """Return the digest that a platform gives these events."""
        found = hashlib.sha256()
        for line in self:
            found.update(line + b"\n")
        return f"sha256:{found.hexdigest()}"


async def _has(client: TrajectoriesClient, id: str, lines: _Lines) -> bool:
    try:
        found = await client.get(id)
    except NotFound:
        return False
    return found.id == id and found.digest == await asyncio.to_thread(lines.digest)


def _upload_of(run: RunRecord) -> RunUpload:
    labels = {str(name): str(value) for name, value in run.labels.items()}
    return RunUpload(id=run.id, title=run.title, request=dict(run.request), labels=labels, created=run.created)


def _summary(episode: StoredEpisode) -> EpisodeSummary:
    fields = episode.model_dump(exclude={"owner", "bytes", "digest", "parents"})
    return EpisodeSummary(**fields, parents=tuple(episode.parents))
