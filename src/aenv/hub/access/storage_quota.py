"""Storage quotas of users, and uploads that no version references yet.

Uploading a blob proves that the user has its content. The hub remembers the upload for a day, in which a push may
reference the blob. A push that references a blob which the user has neither uploaded nor may read is refused as if the
blob were missing: knowing a digest gives no right to its content.
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
"""Minimum bytes that a blob counts for. A file takes at least one disk block, so many empty blobs fill a disk too."""
FRESH = 5.0
"""Seconds for which uploads are checked against a cached usage; a push always counts again."""
CACHED = 1000


class Quotas:
    """Storage usage and limits of users."""

    def __init__(self, store: Store, limit: int = DEFAULT, clock: Callable[[], float] = time.time) -> None:
        """``limit``: bytes for every user without a limit of their own; 0: no limit."""
        self._store = store
        self._limit = limit
        self._clock = clock
        self._references = References(store)
        self._counted: dict[str, tuple[float, StorageUsage]] = {}

    async def usage(self, user: str) -> StorageUsage:
        """Count the bytes that a user occupies now."""
        used = _total((await self._blobs(user)).values())
        uploading = 0
        async for record in self._store.all(Query(UPLOAD, (_user_index(user),), limit=1000)):
            uploading += max(BLOCK, int(record.value))
        return StorageUsage(user=user, used=used, uploading=uploading, limit=await self.limit(user))

    async def limit(self, user: str) -> int:
        """Return a user's limit in bytes; 0: no limit."""
        found = await self._store.get(QUOTA, _key(user))
        return self._limit if found is None else int(found.value)

    async def set_limit(self, user: str, limit: int | None) -> None:
        """Set a user's own limit; None: use the hub's default."""
        self._counted.pop(user, None)
        change = Delete(QUOTA, _key(user)) if limit is None else Put(QUOTA, _key(user), str(limit).encode())
        await self._store.commit(change)

    # --- uploads

    async def admit(self, user: str, size: int) -> None:
        """Refuse an upload that would exceed the user's limit.

        Raises:
            QuotaExceeded: with the usage and the limit in its details.
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
            raise quota_exceeded(user, usage.used + usage.uploading, size, usage.limit)
        self._counted[user] = at, usage.model_copy(update={"uploading": usage.uploading + size})

    async def record_upload(self, user: str, digest: str, size: int) -> None:
        """Record that a user has uploaded a blob."""
        until = self._clock() + UPLOAD_SECONDS
        entries = ((_user_index(user), digest),)
        await self._store.commit(Put(UPLOAD, _upload(user, digest), str(size).encode(), entries, until))

    async def recent_uploads(self, user: str, digests: list[str]) -> set[str]:
        """Return the blobs of a list that a user has uploaded in the last day."""
        found = await self._store.get_many(UPLOAD, [_upload(user, digest) for digest in digests])
        return {digest for digest, record in zip(digests, found, strict=True) if record is not None}

    async def forget_uploads(self, user: str, digests: Iterable[str]) -> None:
        """Delete the upload records of blobs that a version references now."""
        self._counted.pop(user, None)
        gone: list[Change] = [Delete(UPLOAD, _upload(user, digest)) for digest in digests]
        if gone:
            await self._store.commit(*gone)

    # --- versions

    async def charge(self, owner: str, blobs: dict[str, int], *, replaced: str = "", skip_quota: bool) -> list[Change]:
        """Return the changes that charge blobs to an owner, to be committed with the version.

        They make two concurrent batches for one owner conflict, so both cannot pass the check on the same usage.
        ``replaced`` is the key of the version that the batch replaces; ``skip_quota`` skips the limit (administrators).

        Raises:
            QuotaExceeded: the owner's limit would be quota_exceeded.
        """
        if not owner:
            return []
        before = await self._store.get(USAGE, _key(owner))
        limit = 0 if skip_quota else await self.limit(owner)
        if limit:
            owned = await self._blobs(owner, replaced)
            used = _total(owned.values())
            more = _total(size for digest, size in blobs.items() if digest not in owned)
            if used + more > limit:
                raise quota_exceeded(owner, used, more, limit)
        return [Put(USAGE, _key(owner), b"", expect=before.revision if before else ABSENT)]

    async def _blobs(self, owner: str, without: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        async for record in self._store.all(Query(ENV, (records.owner_index(owner),))):
            found |= await self._references.sizes(record.key, without)
        return found


def _total(sizes: Iterable[int]) -> int:
    return sum(max(BLOCK, size) for size in sizes)


def quota_exceeded(user: str, used: int, more: int, limit: int) -> QuotaExceeded:
    """Return the error for a user whose storage is full."""
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


def _user_index(user: str) -> str:
    return f"by/{_key(user)}"
