"""Moves the episodes of the platform's own rollouts into its archive.

A rollout records into a store in this server's folder, event by event, which survives a crash. When an episode is over
it is archived, where all servers of the platform find it. The copy here stays for some days, so that a rollout can be
resumed; what a crash kept from being archived is found when the server starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from pydantic_core import from_json

from aenv.errors import AEnvError, Conflict, NotFound, TooLarge
from aenv.platform.trajectories.archive_index import EpisodeSelection
from aenv.platform.trajectories.episode_archive import ANSWER_BYTES, Announced, EpisodeArchive, Upload
from aenv.platform.trajectories.episode_parts import EpisodePart, PartSplitter, StoredPart
from aenv.schema.trajectories import EventPage, RunUpload, StoredEpisode
from aenv.tracing.logging import getLogger
from aenv.trajectory import EpisodeSummary, TrajectoryStore

log = getLogger("trajectories")

GROUP = 64
"""Most episodes of one commit."""
GROUP_EVENTS = 20_000
"""Events from which a group gets no further episode."""
GROUP_BYTES = 64 << 20
"""Compressed bytes from which a group gets no further episode."""
WRITE_BYTES = 16 << 20
"""Compressed bytes of events that are held before they are written."""
PARTS_AT_ONCE = 16
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
        self.too_large: set[str] = set()
        """Runs with an episode that is too large to be archived."""

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
        items: list[dict[str, object]] = []
        size = 0
        for line in islice(self._open_store().lines(id), start, start + limit):
            size += len(line)
            if items and size > ANSWER_BYTES:
                return EventPage(items=items, next=start + len(items))
            items.append(from_json(line))
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
        store, copies = self._open_store(), _Copies(self.archive)
        ids = list(self._queue)[:GROUP]
        found = await asyncio.to_thread(_existing, store, ids)
        considered = [id for id in ids if id not in found]
        missing = {each.id for each in await self.archive.missing(list(found.values()))}
        for id, episode in found.items():
            considered.append(id)
            if id in missing and not await copies.add(store, episode):
                self.too_large.add(episode.run)
            if copies.is_full:
                break
        uploads = await copies.finish()
        for owner in sorted({each.episode.owner for each in uploads}):
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


def _existing(store: TrajectoryStore, ids: Sequence[str]) -> dict[str, StoredEpisode]:
    """Return those episodes that are not gone meanwhile, by id."""
    found = {}
    for id in ids:
        with contextlib.suppress(NotFound):
            found[id] = _stored(store.episode(id))
    return found


class _Copies:
    """Episodes whose events are being copied to blobs. What is in memory is bounded, however long they are."""

    def __init__(self, archive: EpisodeArchive) -> None:
        self._archive = archive
        self._announced = Announced()
        self._waiting: list[EpisodePart] = []
        self._copied: list[tuple[StoredEpisode | None, list[StoredPart]]] = []
        """Episodes with their parts, in the order of the announcements. None: the parts are to be discarded."""
        self._bytes = self._events = 0

    @property
    def is_full(self) -> bool:
        """True if no further episode should be added."""
        return self._events > GROUP_EVENTS or self._bytes > GROUP_BYTES

    async def add(self, store: TrajectoryStore, episode: StoredEpisode) -> bool:
        """Copy an episode, if it is still there. Returns False if it is too large to be archived."""
        splitter = PartSplitter(episode.owner, episode.id, self._announced.id)
        places: list[StoredPart] = []
        size = 0
        try:
            lines = await asyncio.to_thread(store.lines, episode.id)
            while parts := await asyncio.to_thread(_next_parts, lines, splitter):
                places += [part.place for part in parts]
                size += sum(len(part.data) for part in parts)
                self._waiting += parts
                if sum(len(part.data) for part in self._waiting) > WRITE_BYTES:
                    await self._write()
        except (NotFound, TooLarge) as error:
            log.warning("episode %s is not archived: %s", episode.id, error.message)
            self._copied.append((None, places))
            return isinstance(error, NotFound)
        stored = episode.model_copy(update={"bytes": size, "digest": splitter.digest})
        self._copied.append((stored, places))
        self._events += splitter.events
        self._bytes += size
        return True

    async def finish(self) -> list[Upload]:
        """Write the rest, and return the episodes to be made visible."""
        await self._write()
        keys = iter(list(self._announced.blobs.items()))
        uploads: list[Upload] = []
        discarded: dict[str, str] = {}
        for episode, places in self._copied:
            own = dict(islice(keys, len(places)))
            if episode is None:
                discarded |= own
            else:
                uploads.append(Upload(episode, places, list(own)))
        await self._archive.discard(discarded)
        return uploads

    async def _write(self) -> None:
        await self._archive.write_parts(self._waiting, self._announced)
        self._waiting = []


def _next_parts(lines: Iterator[bytes], splitter: PartSplitter) -> list[EpisodePart]:
    """Return the next parts of an episode, the last of which may be short; empty at its end."""
    found, size = [], 0
    for line in lines:
        part = splitter.add(line)
        if part is not None:
            found.append(part)
            size += len(line)
        if len(found) >= PARTS_AT_ONCE or size > WRITE_BYTES:
            return found
    last = splitter.rest()
    return found if last is None else [*found, last]
