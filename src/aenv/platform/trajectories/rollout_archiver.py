"""Moves the episodes of the platform's own rollouts into its archive.

A rollout records into a store in this server's folder, event by event, which survives a crash. When an episode is over
it is archived, where all servers of the platform find it. The copy here stays for some days, so that a rollout can be
resumed; what a crash kept from being archived is found when the server starts again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import islice

from aenv.errors import AEnvError, Conflict, NotFound, TooLarge
from aenv.platform.trajectories.archive_index import EpisodeSelection
from aenv.platform.trajectories.episode_archive import Announced, EpisodeArchive, Upload
from aenv.platform.trajectories.episode_parts import EpisodePart, PartSplitter
from aenv.schema.trajectories import EventPage, RunUpload, StoredEpisode
from aenv.tracing.logging import getLogger
from aenv.trajectory import EpisodeSummary, TrajectoryStore

log = getLogger("trajectories")

GROUP = 64
"""Most episodes of one commit."""
GROUP_EVENTS = 20_000
"""Events from which a group gets no further episode, which bounds the memory that it takes."""
KEPT_SECONDS = 7 * 86400.0
"""Age from which archived episodes are removed from this server's own store."""
UPKEEP_SECONDS = 6 * 3600.0
SETTLE_SECONDS = 60.0
"""Maximum time that the end of a rollout waits for its episodes to be archived."""


class RolloutArchiver:
    """Archives the episodes of one server's rollouts."""

    def __init__(self, archive: EpisodeArchive, open_store: Callable[[], TrajectoryStore]) -> None:
        self.archive = archive
        self._open_store = open_store
        self._queue: dict[str, None] = {}
        """Ids of episodes that are over."""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Archive what the previous server left, then episodes as they end."""
        self._tasks = [asyncio.create_task(self._work()), asyncio.create_task(self._upkeep())]

    async def close(self) -> None:
        """Archive what is queued, and stop."""
        await self._settled()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def add(self, episode: str) -> None:
        """Archive an episode that is over, soon."""
        self._queue[episode] = None
        self._idle.clear()
        self._wake.set()

    async def finish(self, run: str) -> None:
        """Archive all episodes of a run that are over, those that were retried too. Waits for a limited time."""
        try:
            await self._queue_missing(run)
        except AEnvError as error:
            log.warning("cannot archive the rest of run %s now: %s", run, error.message)
        await self._settled()

    # --- episodes that are being recorded

    def recording(self, where: EpisodeSelection, limit: int) -> list[StoredEpisode]:
        """Return running episodes of this server, newest first."""
        found = self._open_store().episodes(where.run, where.task, state="running", limit=1000, newest_first=True)
        return [each for each in map(_stored, found) if where.accepts(each)][:limit]

    def find(self, owner: str | None, id: str) -> StoredEpisode | None:
        """Return an episode of this server's own store; None if there is none that belongs to this user."""
        try:
            episode = _stored(self._open_store().episode(id))
        except NotFound:
            return None
        return episode if owner in (None, episode.owner) else None

    def events(self, id: str, start: int, limit: int) -> EventPage:
        """Return some events of an episode of this server's own store."""
        items = list(self._open_store().events(id, start, limit))
        return EventPage(items=items, next=start + limit if len(items) == limit else None)

    # --- in the background

    async def _settled(self) -> None:
        if not self._tasks:
            return
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d episodes are not archived yet", len(self._queue))

    async def _work(self) -> None:
        pause = 1.0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while self._queue:
                    await self._archive_group()
                pause = 1.0
                self._idle.set()
            except AEnvError as error:
                log.warning("cannot archive episodes; trying again in %g s: %s", pause, error.message)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 60.0)
                self._wake.set()
            except Exception:
                log.exception("cannot archive episodes")
                self._queue.clear()  # the next start finds them
                self._idle.set()

    async def _archive_group(self) -> None:
        store, announced = self._open_store(), Announced()
        ids = list(self._queue)[:GROUP]
        read, considered = await asyncio.to_thread(_read, store, ids, announced.id)
        missing = {each.id for each in await self.archive.missing([episode for episode, _ in read])}
        wanted = [(episode, parts) for episode, parts in read if episode.id in missing]
        await self.archive.write_parts([part for _, parts in wanted for part in parts], announced)
        keys = iter(announced.blobs)
        uploads = [
            Upload(episode, [part.place for part in parts], list(islice(keys, len(parts)))) for episode, parts in wanted
        ]
        for owner in sorted({episode.owner for episode, _ in wanted}):
            own = [each for each in uploads if each.episode.owner == owner]
            for run in sorted({each.episode.run for each in own}):
                await self._put_run(owner, store, run)
            try:
                await self.archive.commit(owner, own)
            except Conflict as error:
                log.warning("%d episodes are not archived: %s", len(own), error.message)
        for id in considered:
            self._queue.pop(id, None)

    async def _put_run(self, owner: str, store: TrajectoryStore, run: str) -> None:
        try:
            found = await asyncio.to_thread(store.run, run)
        except NotFound:
            return
        labels = {str(name): str(value) for name, value in found.labels.items()}
        upload = RunUpload(id=run, title=found.title, request=dict(found.request), labels=labels, created=found.created)
        await self.archive.put_run(owner, upload)

    async def _queue_missing(self, run: str | None = None) -> None:
        """Queue all episodes of the own store that are over and not archived."""
        store, after = self._open_store(), None
        while page := await asyncio.to_thread(store.episodes, run, after=after, limit=200):
            over = [_stored(each) for each in page if each.state != "running"]
            for each in await self.archive.missing(over):
                if each.events:
                    self.add(each.id)
            after = page[-1].id

    async def _upkeep(self) -> None:
        while True:
            try:
                await self._queue_missing()
                await self._settled()
                if self._idle.is_set():
                    await asyncio.to_thread(self._open_store().prune, before=time.time() - KEPT_SECONDS)
                await self.archive.clean()
            except AEnvError as error:
                log.warning("cannot look after trajectories now: %s", error.message)
            except Exception:
                log.exception("cannot look after trajectories")
            await asyncio.sleep(UPKEEP_SECONDS)


def _stored(summary: EpisodeSummary) -> StoredEpisode:
    fields = {**summary.as_json(), "owner": str(summary.labels.get("owner", ""))}
    return StoredEpisode.model_validate(fields)


def _read(
    store: TrajectoryStore, ids: Sequence[str], upload: str
) -> tuple[list[tuple[StoredEpisode, list[EpisodePart]]], list[str]]:
    """Read episodes, the first and as many more as do not take too much memory, and cut them into parts.

    Returns them, and the ids that were dealt with: an episode that is gone or too large is left out.
    """
    found: list[tuple[StoredEpisode, list[EpisodePart]]] = []
    events = 0
    for number, id in enumerate(ids, 1):
        try:
            episode = _stored(store.episode(id))
            splitter = PartSplitter(episode.owner, id, upload)
            parts = [part for line in store.lines(id) if (part := splitter.add(line)) is not None]
        except NotFound:
            continue
        except TooLarge as error:
            log.warning("episode %s is not archived: %s", id, error.message)
            continue
        last = splitter.rest()
        if last is not None:
            parts.append(last)
        size = sum(len(part.data) for part in parts)
        found.append((episode.model_copy(update={"bytes": size, "digest": splitter.digest}), parts))
        events += splitter.events
        if events > GROUP_EVENTS:
            return found, list(ids[:number])
    return found, list(ids)
