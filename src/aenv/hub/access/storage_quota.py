"""How much of a hub's storage a user may occupy, and what was uploaded but is not part of a version yet.

Who uploads a blob has shown that they have it; that is remembered for a day, in which a push may name it. A push that
names a blob which its pusher has neither uploaded nor may read is refused as if the blob were not there: knowing a
digest is no right to what it stands for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from urllib.parse import quote

from aenv.errors import QuotaExceeded
from aenv.hub import records
from aenv.hub.records import ENV
from aenv.hub.references import References
from aenv.schema.envhub import StorageUsage
from aenv.storage.base import ABSENT, Change, Delete, Put, Query, Store

UPLOAD, USAGE, QUOTA = "upload", "usage", "quota"
UPLOAD_SECONDS = 24 * 3600.0
DEFAULT = 50 * 2**30
BLOCK = 4096
"""Bytes that a blob counts at least: that much it takes on a disk, and many empty ones fill it too."""
FRESH = 5.0
"""Seconds for which an upload is checked against what was counted before; a push always counts anew."""
CACHED = 1000


class Quotas:
    """Counts what users occupy."""

    def __init__(self, store: Store, limit: int = DEFAULT, clock: Callable[[], float] = time.time) -> None:
        """``limit``: bytes for every user who has no limit of their own; 0: no limit."""
        self._store = store
        self._limit = limit
        self._clock = clock
        self._references = References(store)
        self._counted: dict[str, tuple[float, StorageUsage]] = {}

    async def usage(self, user: str) -> StorageUsage:
        """Count what a user occupies now."""
        used = _total((await self._blobs(user)).values())
        uploading = 0
        async for record in self._store.all(Query(UPLOAD, (_of_user(user),), limit=1000)):
            uploading += max(BLOCK, int(record.value))
        return StorageUsage(user=user, used=used, uploading=uploading, limit=await self.limit(user))

    async def limit(self, user: str) -> int:
        """Return how many bytes a user may occupy; 0: no limit."""
        found = await self._store.get(QUOTA, _key(user))
        return self._limit if found is None else int(found.value)

    async def set_limit(self, user: str, limit: int | None) -> None:
        """Set a user's own limit; None: as for every other user."""
        self._counted.pop(user, None)
        change = Delete(QUOTA, _key(user)) if limit is None else Put(QUOTA, _key(user), str(limit).encode())
        await self._store.commit(change)

    # --- uploads

    async def admit(self, user: str, size: int) -> None:
        """Refuse an upload that a user has no room for.

        Raises:
            QuotaExceeded: with what there is.
        """
        now = time.monotonic()
        at, usage = self._counted.get(user, (0.0, None))
        if usage is None or now - at > FRESH:
            at, usage = now, await self.usage(user)
            if len(self._counted) >= CACHED:
                self._counted.clear()
        size = max(BLOCK, size)
        if usage.limit and usage.used + usage.uploading + size > usage.limit:
            self._counted.pop(user, None)
            raise exceeded(user, usage.used + usage.uploading, size, usage.limit)
        self._counted[user] = at, usage.model_copy(update={"uploading": usage.uploading + size})

    async def uploaded(self, user: str, digest: str, size: int) -> None:
        """Remember that a user has sent a blob."""
        until = self._clock() + UPLOAD_SECONDS
        entries = ((_of_user(user), digest),)
        await self._store.commit(Put(UPLOAD, _upload(user, digest), str(size).encode(), entries, until))

    async def held(self, user: str, digests: list[str]) -> set[str]:
        """Return those of the blobs that a user has sent in the last day."""
        found = await self._store.get_many(UPLOAD, [_upload(user, digest) for digest in digests])
        return {digest for digest, record in zip(digests, found, strict=True) if record is not None}

    async def published(self, user: str, digests: Iterable[str]) -> None:
        """Forget uploads that a version names now."""
        self._counted.pop(user, None)
        gone: list[Change] = [Delete(UPLOAD, _upload(user, digest)) for digest in digests]
        if gone:
            await self._store.commit(*gone)

    # --- versions

    async def charge(self, owner: str, blobs: dict[str, int], *, replaced: str = "", free: bool) -> list[Change]:
        """Return what a batch has to change that gives an owner these blobs, so that no two batches are counted apart.

        ``replaced`` is the key of a version that goes with it; ``free``: it is an administrator's doing, and may
        exceed the limit.

        Raises:
            QuotaExceeded: it would be too much.
        """
        if not owner:
            return []
        before = await self._store.get(USAGE, _key(owner))
        limit = 0 if free else await self.limit(owner)
        if limit:
            there = await self._blobs(owner, replaced)
            used = _total(there.values())
            more = _total(size for digest, size in blobs.items() if digest not in there)
            if used + more > limit:
                raise exceeded(owner, used, more, limit)
        return [Put(USAGE, _key(owner), b"", expect=before.revision if before else ABSENT)]

    async def _blobs(self, owner: str, without: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        async for record in self._store.all(Query(ENV, (records.of_owner(owner),))):
            found |= await self._references.sizes(record.key, without)
        return found


def _total(sizes: Iterable[int]) -> int:
    return sum(max(BLOCK, size) for size in sizes)


def exceeded(user: str, used: int, more: int, limit: int) -> QuotaExceeded:
    """What to say when it is too much."""
    return QuotaExceeded(
        f"the storage of {user} in this hub is full: {used} of {limit} bytes are used, and this needs {more} more",
        details={
            "used": used, "needed": more, "limit": limit,
            "hint": "Delete versions that are not needed, or ask the hub's administrator for more.",
        },
    )  # fmt: skip


def _key(user: str) -> str:
    return quote(user, safe="")


def _upload(user: str, digest: str) -> str:
    return f"{_key(user)}/{digest}"


def _of_user(user: str) -> str:
    return f"by/{_key(user)}"
