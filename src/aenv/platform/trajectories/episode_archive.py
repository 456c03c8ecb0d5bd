"""Recorded episodes in the platform's stores: events in blobs, what is listed in an index.

An episode is stored completely or not at all. Its blobs are written first, each announced in the record store, and one
commit then makes the episode visible, updates its run and its owner's usage, and withdraws the announcements. What a
crash leaves announced is deleted later. Deleting an episode goes the same way back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, field

from pydantic_core import from_json, to_json

from aenv.errors import (
    AEnvError,
    Conflict,
    InvalidArguments,
    NotFound,
    QuotaExceeded,
    RateLimited,
    TooLarge,
    Unavailable,
)
from aenv.platform.trajectories.archive_index import (
    DELETED,
    EPISODES,
    FINALS,
    PARTS,
    RUNS,
    UPLOADS,
    USAGE,
    EpisodeParts,
    EpisodeSelection,
    OwnerUsage,
    RunEntry,
    cursor,
    episode_key,
    episode_put,
    is_run_cursor,
    moment,
    parse_cursor,
    run_key,
    run_put,
    sample_key,
    short,
)
from aenv.platform.trajectories.episode_parts import EpisodePart, LineReader, PartSplitter, StoredPart, events_of_part
from aenv.platform.trajectories.upload_check import UploadCheck
from aenv.schema.trajectories import (
    MAX_RUN_BYTES,
    EpisodePage,
    EventPage,
    PruneAnswer,
    RunPage,
    RunUpload,
    StoredEpisode,
    StoredRun,
)
from aenv.storage.base import ABSENT, BY_KEY, Change, Delete, Put, Query, Record, Stale, Store, position
from aenv.storage.blobs import BlobStore
from aenv.tracing.logging import getLogger

log = getLogger("trajectories")

ANSWER_BYTES = 4 << 20
"""Bytes of events from which a page gets no further event."""
UPLOADS_PER_OWNER = 16
"""Uploads of one user at the same time."""
UPLOAD_SECONDS = 3600.0
"""Time limit of an upload."""
LEFT_BEHIND_SECONDS = 24 * 3600.0
"""Age from which announced blobs are taken for those of a crash."""
DELETED_SECONDS = 30 * 86400.0
WRITES = 8
"""Blobs that one upload writes at the same time."""
PRUNE_STEP = 200
ATTEMPTS = 20


@dataclass(slots=True)
class Upload:
    """An episode whose events are in blobs, and that is not visible yet."""

    episode: StoredEpisode
    parts: list[StoredPart]
    announced: list[str]
    """Keys of its announcements."""


@dataclass(slots=True)
class Announced:
    """Blobs that were announced for one upload."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    blobs: dict[str, str] = field(default_factory=dict)
    """Key of the announcement to the blob's digest."""


class EpisodeArchive:
    """The episodes that a platform keeps."""

    def __init__(
        self, store: Store, blobs: BlobStore, *, quota: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        """``quota``: bytes of the episodes of one user, compressed; 0: no limit."""
        self._store = store
        self._blobs = blobs
        self._quota = quota
        self._clock = clock
        self._committing = asyncio.Lock()
        self._uploading: dict[str, int] = {}

    async def close(self) -> None:
        """Close the blob store."""
        await self._blobs.close()

    # --- read

    async def get(self, owner: str | None, id: str) -> StoredEpisode:
        """Return an episode by its id or an unambiguous beginning of it. ``owner``: None for that of any user.

        Raises:
            NotFound: there is none, or more than one.
        """
        found: list[Record] = []
        if id.isascii() and id.isprintable():
            if owner is not None:
                exact = await self._store.get(EPISODES, episode_key(owner, id))
                index, high = f"ids:{short(owner)}", f"{id}~"
            else:
                exact, index, high = None, BY_KEY, f"{id}~"
            if exact is not None:
                return _episode(exact)
            found = (await self._store.page(Query(EPISODES, (index,), low=id, high=high, limit=2))).records
            same = [record for record in found if record.key.startswith(f"{id}/")]
            found = same or found
        if len(found) == 1:
            return _episode(found[0])
        raise NotFound(f"episode {id:.200} {'is ambiguous' if found else 'does not exist'}")

    async def page(
        self, where: EpisodeSelection, *, after: str | None = None, limit: int = 100, newest_first: bool = False
    ) -> EpisodePage:
        """Return a page of episodes in the order of their beginning."""
        page = await self._store.page(where.query(after=after, limit=limit, newest_first=newest_first))
        return EpisodePage(items=[_episode(record) for record in page.records], next=cursor(page.next))

    async def events(self, episode: StoredEpisode, start: int, limit: int) -> EventPage:
        """Return some events of an episode."""
        record = await self._store.get(PARTS, episode_key(episode.owner, episode.id))
        if record is None:
            raise NotFound(f"episode {episode.id} does not exist")
        items: list[dict[str, object]] = []
        size = 0
        for part in EpisodeParts.model_validate_json(record.value).parts:
            if part.first + part.count <= start:
                continue
            try:
                data = await self._blobs.get(part.digest)
            except NotFound:
                raise NotFound(
                    f"the events of episode {episode.id} are not in the storage of this server",
                    details={"hint": "Servers of one platform need storage that all of them reach: aenv serve --blobs"},
                ) from None
            begin, stop = start + len(items) - part.first, start + limit - part.first
            for event, length in await asyncio.to_thread(events_of_part, data, begin, stop):
                if items and size + length > ANSWER_BYTES:
                    return EventPage(items=items, next=start + len(items))
                items.append(event)
                size += length
            if len(items) >= limit:
                break
        end = start + len(items)
        return EventPage(items=items, next=end if items and end < (episode.events or 0) else None)

    async def runs(
        self, owner: str | None, *, id: str | None = None, after: str | None = None, limit: int = 100
    ) -> RunPage:
        """Return runs, newest first. ``id``: only those of this id."""
        indexes = [f"owner:{short(owner)}"] if owner is not None else []
        indexes += [f"id:{short(id)}"] if id is not None else []
        at = None
        if after is not None:
            at = parse_cursor(after) if is_run_cursor(after) else await self._after_run(owner, after)
        page = await self._store.page(Query(RUNS, tuple(indexes) or ("all",), reverse=True, after=at, limit=limit))
        items = [RunEntry.model_validate_json(record.value).shown() for record in page.records]
        return RunPage(items=items, next=cursor(page.next))

    async def _after_run(self, owner: str | None, id: str) -> str | None:
        """Return the position after a run."""
        found = (await self.runs(owner, id=id, limit=1)).items
        if not found:
            raise NotFound(f"no such run: {id:.200}")
        return position(moment(found[0].created), run_key(found[0].owner, id))

    async def missing(self, episodes: Sequence[StoredEpisode]) -> list[StoredEpisode]:
        """Return those that are neither stored nor deleted."""
        keys = [episode_key(each.owner, each.id) for each in episodes]
        stored, deleted = await self._store.get_many(EPISODES, keys), await self._store.get_many(DELETED, keys)
        found = zip(episodes, stored, deleted, strict=True)
        return [each for each, record, gone in found if gone is None and record is None]

    # --- write

    async def check_quota(self, owner: str) -> None:
        """Raise QuotaExceeded if a user's episodes take as much space as they may."""
        if not self._quota:
            return
        record = await self._store.get(USAGE, short(owner))
        used = OwnerUsage.model_validate_json(record.value).bytes if record else 0
        if used >= self._quota:
            raise self._over_quota(used)

    def _over_quota(self, size: int) -> QuotaExceeded:
        return QuotaExceeded(
            f"your trajectories take {size / 2**20:.1f} of {self._quota / 2**20:.1f} MiB",
            details={"hint": "Delete some of them: aenv trajectory prune --older-than 30d"},
        )

    async def put_run(self, owner: str, run: RunUpload) -> StoredRun:
        """Store a run and return it; if there is one of that id with a request, return that one, unchanged.

        Raises:
            TooLarge: the request is too large.
        """
        if len(run.model_dump_json()) > MAX_RUN_BYTES:
            raise TooLarge(f"a run has at most {MAX_RUN_BYTES >> 20} MiB")
        for _ in range(ATTEMPTS):
            record = await self._store.get(RUNS, run_key(owner, run.id))
            known = RunEntry.model_validate_json(record.value) if record else None
            if known is not None and (known.run.request or known.run.title):
                return known.shown()
            entry = RunEntry(run=StoredRun(**run.model_dump(), owner=owner))
            entry.episodes = known.episodes if known else {}
            with contextlib.suppress(Stale):
                await self._store.commit(run_put(entry, record.revision if record else ABSENT))
                return entry.shown()
        raise Unavailable(f"run {run.id} is being changed by others; try again")

    async def put(
        self, owner: str, id: str, body: AsyncIterable[bytes], *, compressed: bool
    ) -> tuple[StoredEpisode, bool]:
        """Store an uploaded episode. Returns the stored one, and whether it is new.

        The same episode again changes nothing. An unfinished one is replaced.

        Raises:
            Conflict: there is an episode of this id with other events.
            InvalidArguments: the events are invalid.
            QuotaExceeded: the user's episodes take as much space as they may.
            RateLimited: the user has too many uploads at the same time.
        """
        if self._uploading.get(owner, 0) >= UPLOADS_PER_OWNER:
            raise RateLimited(f"at most {UPLOADS_PER_OWNER} uploads at the same time", details={"retry_after": 1})
        self._uploading[owner] = self._uploading.get(owner, 0) + 1
        announced = Announced()
        try:
            await self.check_quota(owner)
            async with asyncio.timeout(UPLOAD_SECONDS):
                upload = await self._receive(owner, id, body, compressed, announced)
            [(stored, fresh)] = await self.commit(owner, [upload], limited=True)
        except TimeoutError:
            raise InvalidArguments(f"the upload took longer than {UPLOAD_SECONDS:g} seconds") from None
        except (Conflict, InvalidArguments, QuotaExceeded, TooLarge):
            # After other failures, a thread may still be writing a blob, or the commit may have arrived all the same.
            await self.discard(announced.blobs)
            raise
        finally:
            self._uploading[owner] -= 1
            if not self._uploading[owner]:
                del self._uploading[owner]
        return stored, fresh

    async def _receive(
        self, owner: str, id: str, body: AsyncIterable[bytes], compressed: bool, announced: Announced
    ) -> Upload:
        reader, check = LineReader(compressed=compressed), UploadCheck(id)
        splitter = PartSplitter(owner, id, announced.id)
        parts: list[StoredPart] = []
        size = 0

        def take(data: bytes) -> list[EpisodePart]:
            complete = []
            for line in reader.feed(data):
                check.add(line)
                part = splitter.add(line)
                if part is not None:
                    complete.append(part)
            return complete

        def finish() -> list[EpisodePart]:
            reader.end()
            check.episode()
            part = splitter.rest()
            return [] if part is None else [part]

        async def write(complete: list[EpisodePart]) -> None:
            nonlocal size
            if complete:
                await self.write_parts(complete, announced)
                parts.extend(each.place for each in complete)
                size += sum(len(each.data) for each in complete)
                if self._quota and size > self._quota:
                    raise self._over_quota(size)

        async for data in body:
            await write(await asyncio.to_thread(take, data))
        await write(await asyncio.to_thread(finish))
        episode = check.episode().model_copy(update={"owner": owner, "bytes": size, "digest": splitter.digest})
        return Upload(episode, parts, list(announced.blobs))

    async def write_parts(self, parts: Sequence[EpisodePart], announced: Announced) -> None:
        """Announce blobs, and write them."""
        if not parts:
            return
        new = {f"{announced.id}-{len(announced.blobs) + number}": part for number, part in enumerate(parts)}
        announced.blobs |= {key: part.place.digest for key, part in new.items()}
        await self._store.commit(*(self._announcement(key, [part.place.digest]) for key, part in new.items()))
        for start in range(0, len(parts), WRITES):
            some = parts[start : start + WRITES]
            await asyncio.gather(*(self._blobs.put(part.place.digest, part.data) for part in some))

    def _announcement(self, key: str, digests: list[str]) -> Put:
        return Put(UPLOADS, key, to_json({"at": self._clock(), "blobs": digests}))

    async def commit(
        self, owner: str, uploads: Sequence[Upload], *, limited: bool = False
    ) -> list[tuple[StoredEpisode, bool]]:
        """Make uploads of one user visible, all in one commit. Returns each stored episode, and whether it is new.

        ``limited``: the quota counts. Episodes of rollouts that have begun are stored in any case.

        Raises:
            Conflict: there is an episode of one of the ids with other events.
            QuotaExceeded: they take the user over the quota.
        """
        for _ in range(ATTEMPTS):
            async with self._committing:
                try:
                    return await self._try_commit(owner, uploads, limited)
                except Stale:
                    continue
        raise Unavailable("the trajectories of this user are being changed by others; try again")

    async def _try_commit(
        self, owner: str, uploads: Sequence[Upload], limited: bool
    ) -> list[tuple[StoredEpisode, bool]]:
        keys = [episode_key(owner, each.episode.id) for each in uploads]
        known = dict(zip(keys, await self._store.get_many(EPISODES, keys), strict=True))
        finals = await self._finals(owner, [each.episode for each in uploads])
        results: list[tuple[StoredEpisode, bool]] = []
        changes: list[Change] = []
        added: list[StoredEpisode] = []
        removed: list[StoredEpisode] = []
        farewells: list[Put] = []
        discarded: dict[str, str] = {}
        for key, upload in zip(keys, uploads, strict=True):
            record = known[key]
            before = None if record is None else _episode(record)
            if before is not None and (before.state == "ended" or before.digest == upload.episode.digest):
                if before.digest != upload.episode.digest:
                    raise Conflict(f"there is another episode {before.id}, with other events")
                results.append((before, False))
                discarded |= {name: part.digest for name, part in zip(upload.announced, upload.parts, strict=True)}
                continue
            if before is not None:
                removed.append(before)
                farewells.append(await self._farewell(before))
            episode, sample = upload.episode, sample_key(owner, upload.episode)
            if episode.final and finals.setdefault(sample, episode.id) != episode.id:
                episode = episode.model_copy(update={"final": False})
            elif episode.final:
                changes.append(Put(FINALS, sample, episode.id.encode()))
            added.append(episode)
            results.append((episode, True))
            changes.append(episode_put(episode, record.revision if record else ABSENT))
            changes.append(Put(PARTS, key, EpisodeParts(parts=upload.parts).model_dump_json().encode()))
            changes += [Delete(UPLOADS, name) for name in upload.announced]
            changes.append(Delete(DELETED, key))
        if added:
            accounts = await self._accounts(owner, added, removed, limited=limited)
            await self._store.commit(*changes, *farewells, *accounts)
        await self.discard(discarded)
        for each in farewells:
            await self._discard_announced(each.key, each.value)
        return results

    async def _finals(self, owner: str, episodes: Sequence[StoredEpisode]) -> dict[str, str]:
        """Return the episodes that are the results of the same samples, by sample."""
        keys = [sample_key(owner, each) for each in episodes]
        found = await self._store.get_many(FINALS, keys)
        return {key: record.value.decode() for key, record in zip(keys, found, strict=True) if record is not None}

    async def _farewell(self, episode: StoredEpisode) -> Put:
        """Return the announcement that the blobs of an episode will be deleted."""
        record = await self._store.get(PARTS, episode_key(episode.owner, episode.id))
        parts = EpisodeParts.model_validate_json(record.value).parts if record else []
        return self._announcement(f"{uuid.uuid4().hex}-0", [part.digest for part in parts])

    async def _accounts(
        self, owner: str, added: Sequence[StoredEpisode], removed: Sequence[StoredEpisode], *, limited: bool = False
    ) -> list[Change]:
        """Return the changes of a user's usage, and of the numbers of runs. Raises QuotaExceeded if ``limited``."""
        record = await self._store.get(USAGE, short(owner))
        usage = OwnerUsage.model_validate_json(record.value) if record else OwnerUsage()
        usage.bytes += sum(each.bytes for each in added) - sum(each.bytes for each in removed)
        usage.episodes += len(added) - len(removed)
        if limited and self._quota and usage.bytes > self._quota:
            raise self._over_quota(usage.bytes)
        changes: list[Change] = [
            Put(USAGE, short(owner), usage.model_dump_json().encode(), expect=record.revision if record else ABSENT)
        ]
        names = sorted({each.run for each in (*added, *removed)})
        for name, known in zip(
            names, await self._store.get_many(RUNS, [run_key(owner, name) for name in names]), strict=True
        ):
            changed = [(each, 1) for each in added] + [(each, -1) for each in removed]
            of_run = [(each, by) for each, by in changed if each.run == name]
            entry = (
                RunEntry.model_validate_json(known.value)
                if known
                else RunEntry(run=StoredRun(id=name, created=of_run[0][0].began, owner=owner))
            )
            for each, by in of_run:
                entry.count(each, by)
            revision = known.revision if known else ABSENT
            if entry.episodes:
                changes.append(run_put(entry, revision))
            elif known:
                changes.append(Delete(RUNS, run_key(owner, name), expect=revision))
        return changes

    async def delete(self, owner: str, episodes: Sequence[StoredEpisode]) -> int:
        """Delete episodes of one user. Returns how many there were."""
        for _ in range(ATTEMPTS):
            async with self._committing:
                try:
                    return await self._try_delete(owner, episodes)
                except Stale:
                    continue
        raise Unavailable("the trajectories of this user are being changed by others; try again")

    async def _try_delete(self, owner: str, episodes: Sequence[StoredEpisode]) -> int:
        keys = [episode_key(owner, each.id) for each in episodes]
        found = [record for record in await self._store.get_many(EPISODES, keys) if record is not None]
        if not found:
            return 0
        gone = [_episode(record) for record in found]
        farewells = [await self._farewell(each) for each in gone]
        until = self._clock() + DELETED_SECONDS
        await self._store.commit(
            *farewells,
            *(Delete(EPISODES, record.key, expect=record.revision) for record in found),
            *(Delete(PARTS, record.key) for record in found),
            *(Delete(FINALS, sample_key(owner, each)) for each in gone if each.final),
            *(Put(DELETED, record.key, b"", expires=until) for record in found),
            *await self._accounts(owner, [], gone),
        )
        for each in farewells:
            await self._discard_announced(each.key, each.value)
        return len(gone)

    async def prune(
        self, where: EpisodeSelection, *, before: float | None, dry_run: bool, after: str | None
    ) -> PruneAnswer:
        """Delete, or count, a limited number of the episodes that match and began before a time."""
        high = "" if before is None else moment(before)
        page = await self._store.page(where.query(after=after, limit=PRUNE_STEP, newest_first=False, high=high))
        episodes = [_episode(record) for record in page.records]
        if not dry_run:
            for owner in sorted({each.owner for each in episodes}):
                await self.delete(owner, [each for each in episodes if each.owner == owner])
        return PruneAnswer(episodes=len(episodes), bytes=sum(each.bytes for each in episodes), next=cursor(page.next))

    # --- clean up

    async def discard(self, announced: dict[str, str]) -> None:
        """Delete blobs that belong to no episode, and withdraw their announcements."""
        try:
            gone = [key for key, digest in announced.items() if await self._blobs.delete_older(digest, 0.0)]
            if gone:
                await self._store.commit(*(Delete(UPLOADS, key) for key in gone))
        except AEnvError as error:  # they are announced, and will be deleted later
            log.warning("cannot delete the blobs of an upload now: %s", error.message)

    async def _discard_announced(self, key: str, value: bytes) -> None:
        try:
            if all([await self._blobs.delete_older(digest, 0.0) for digest in from_json(value)["blobs"]]):
                await self._store.commit(Delete(UPLOADS, key))
        except AEnvError as error:
            log.warning("cannot delete the blobs of an episode now: %s", error.message)

    async def clean(self) -> int:
        """Delete blobs that uploads and deletions of dead servers left. Returns the number of announcements."""
        oldest, count = self._clock() - LEFT_BEHIND_SECONDS, 0
        async for record in self._store.all(Query(UPLOADS, limit=100)):
            if from_json(record.value)["at"] < oldest:
                await self._discard_announced(record.key, record.value)
                count += 1
        return count


def _episode(record: Record) -> StoredEpisode:
    return StoredEpisode.model_validate_json(record.value)
