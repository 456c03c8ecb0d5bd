"""References from versions to blobs: they decide who may read a blob, and how much storage an owner occupies.

A version has two records here: one that is indexed by each of its blobs, and one with the sizes of the blobs and of the
version's details. Both are written and deleted in the same batch as the version.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping

from aenv.errors import NotFound
from aenv.hub import records
from aenv.hub.records import VERSION
from aenv.schema.bundle import Bundle
from aenv.schema.envhub import EnvSummary
from aenv.storage.base import Change, Delete, Put, Query, Store
from aenv.storage.blobs import BlobStore

log = logging.getLogger("aenv.hub")

NAMED, SIZES = "blob-named", "blob-sizes"
META, COMPLETE = "meta", "blob-references"
"""Marks a store in which every version has its reference records."""
BATCH = 50
LARGE = 64 * 1024
"""Bytes above which a record is parsed in a thread, so that it does not block the event loop."""


class References:
    """Reference records of all versions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @staticmethod
    def puts(name: str, version: str, blobs: Mapping[str, int], detail: int) -> tuple[dict[str, int], list[Change]]:
        """Return the sizes to charge for a version with files, and the changes to commit with it.

        ``blobs`` includes the manifest; ``detail`` is the size of the version's details in bytes.
        """
        key = records.key(name, version)
        entries = tuple((_blob_index(digest), name) for digest in blobs)
        sizes, put = _sizes(name, version, blobs, detail)
        return sizes, [Put(NAMED, key, b"", entries), put]

    async def described(self, name: str, version: str, detail: int) -> tuple[dict[str, int], list[Change]]:
        """Return sizes and changes for a version whose details change and whose blobs, if any, stay the same."""
        found = await self._store.get(SIZES, records.key(name, version))
        sizes, put = _sizes(name, version, json.loads(found.value) if found else {}, detail)
        return sizes, [put]

    @staticmethod
    def deletes(name: str, version: str) -> list[Change]:
        """Return the changes that delete a version's reference records."""
        key = records.key(name, version)
        return [Delete(NAMED, key), Delete(SIZES, key)]

    async def any_env_with(self, digest: str, fits: Callable[[str], Awaitable[bool]]) -> bool:
        """Return whether any environment that references a blob fits. Each is checked once, until one fits."""
        low = ""
        while True:
            page = await self._store.page(Query(NAMED, (_blob_index(digest),), low=low, limit=1))
            if not page.records:
                return False
            name = page.records[0].key.partition("/")[0]
            if await fits(name):
                return True
            low = f"{name} "  # sorts after every version of this name, and before all other names

    async def sizes(self, name: str, without: str = "") -> dict[str, int]:
        """Return the blobs of an environment's versions with their sizes, leaving out one version's key."""
        found: dict[str, int] = {}
        async for record in self._store.all(Query(SIZES, (_name_index(name),))):
            if record.key == without:
                continue
            large = len(record.value) > LARGE
            found |= await asyncio.to_thread(json.loads, record.value) if large else json.loads(record.value)
        return found


async def index_blobs(store: Store, blobs: BlobStore) -> None:
    """Write the missing reference records of a store that an older aenv wrote."""
    if await store.get(META, COMPLETE) is not None:
        return
    batch: list[EnvSummary] = []
    done = 0
    async for record in store.all(Query(VERSION, limit=BATCH)):
        batch.append(records.parse_summary(record))
        if len(batch) == BATCH:
            done += await _index_batch(store, blobs, batch)
            batch = []
    done += await _index_batch(store, blobs, batch)
    await store.commit(Put(META, COMPLETE, b"1"))
    if done:
        log.info("indexed the blobs of %d versions", done)


async def require_indexing(store: Store) -> None:
    """Make the next opening check again, because records were imported from elsewhere."""
    await store.commit(Delete(META, COMPLETE))


async def _index_batch(store: Store, blobs: BlobStore, versions: list[EnvSummary]) -> int:
    keys = [records.key(version.name, version.version) for version in versions]
    known = await store.get_many(SIZES, keys)
    changes: list[Change] = []
    for version, record in zip(versions, known, strict=True):
        if record is None and version.digest:
            try:
                manifest = await blobs.get(version.digest)
            except NotFound:
                log.warning("the manifest of %s@%s is missing: its files cannot be read", version.name, version.version)
                continue
            sizes = {**await asyncio.to_thread(_manifest_blobs, manifest), version.digest: len(manifest)}
            changes += References.puts(version.name, version.version, sizes, 0)[1]
    if changes:
        await store.commit(*changes)
    return len(changes) // 2


def _manifest_blobs(manifest: bytes) -> dict[str, int]:
    try:
        return Bundle.model_validate_json(manifest).blobs()
    except ValueError:
        # Validation may have become stricter since. The references stay valid; their sizes count as 0.
        return {blob: 0 for file in json.loads(manifest).get("files", ()) for blob in file.get("blobs", ())}


def _sizes(name: str, version: str, blobs: Mapping[str, int], detail: int) -> tuple[dict[str, int], Put]:
    key = records.key(name, version)
    sizes = {**blobs, f"detail/{key}": detail}
    return sizes, Put(SIZES, key, json.dumps(sizes, separators=(",", ":")).encode(), ((_name_index(name), version),))


def _blob_index(digest: str) -> str:
    return f"blob/{digest}"


def _name_index(name: str) -> str:
    return f"of/{name}"
