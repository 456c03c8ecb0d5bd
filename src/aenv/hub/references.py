"""Which versions name which blobs: by it a hub knows who may read a blob, and what an owner occupies.

A version has two records here: one that stands in an index for each of its blobs, and one with their sizes and that of
what is said of the version besides. Both are written and deleted in the same batch as the version.
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
"""Set once every version of the store has its records here."""
BATCH = 50
LARGE = 64 * 1024
"""Bytes from which on a record is parsed beside the event loop."""


class References:
    """The records of all versions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @staticmethod
    def puts(name: str, version: str, blobs: Mapping[str, int], detail: int) -> tuple[dict[str, int], list[Change]]:
        """Return what a version occupies, and what to write with one that has these blobs, its manifest among them.

        ``detail``: bytes of what is said of it besides.
        """
        key = records.key(name, version)
        entries = tuple((_of_blob(digest), name) for digest in blobs)
        sizes, put = _sizes(name, version, blobs, detail)
        return sizes, [Put(NAMED, key, b"", entries), put]

    async def described(self, name: str, version: str, detail: int) -> tuple[dict[str, int], list[Change]]:
        """Return the same for a version whose blobs stay what they are, or that has none."""
        found = await self._store.get(SIZES, records.key(name, version))
        sizes, put = _sizes(name, version, json.loads(found.value) if found else {}, detail)
        return sizes, [put]

    @staticmethod
    def deletes(name: str, version: str) -> list[Change]:
        """What to remove with a version."""
        key = records.key(name, version)
        return [Delete(NAMED, key), Delete(SIZES, key)]

    async def any_names(self, digest: str, fits: Callable[[str], Awaitable[bool]]) -> bool:
        """Whether an environment that fits names a blob; each that names it is asked for once, until one fits."""
        low = ""
        while True:
            page = await self._store.page(Query(NAMED, (_of_blob(digest),), low=low, limit=1))
            if not page.records:
                return False
            name = page.records[0].key.partition("/")[0]
            if await fits(name):
                return True
            low = f"{name} "  # after every version of that name, and before all other names

    async def sizes(self, name: str, without: str = "") -> dict[str, int]:
        """Return the blobs of all versions of an environment but one, with their sizes."""
        found: dict[str, int] = {}
        async for record in self._store.all(Query(SIZES, (_of_name(name),))):
            if record.key == without:
                continue
            large = len(record.value) > LARGE
            found |= await asyncio.to_thread(json.loads, record.value) if large else json.loads(record.value)
        return found


async def complete(store: Store, blobs: BlobStore) -> None:
    """Write the records of versions that have none: those of a store that an older aenv wrote."""
    if await store.get(META, COMPLETE) is not None:
        return
    batch: list[EnvSummary] = []
    done = 0
    async for record in store.all(Query(VERSION, limit=BATCH)):
        batch.append(records.summary(record))
        if len(batch) == BATCH:
            done += await _complete(store, blobs, batch)
            batch = []
    done += await _complete(store, blobs, batch)
    await store.commit(Put(META, COMPLETE, b"1"))
    if done:
        log.info("wrote down the blobs of %d versions", done)


async def forget_complete(store: Store) -> None:
    """Have the next opening look again: records came from elsewhere."""
    await store.commit(Delete(META, COMPLETE))


async def _complete(store: Store, blobs: BlobStore, versions: list[EnvSummary]) -> int:
    keys = [records.key(version.name, version.version) for version in versions]
    known = await store.get_many(SIZES, keys)
    changes: list[Change] = []
    for version, there in zip(versions, known, strict=True):
        if there is None and version.digest:
            try:
                manifest = await blobs.get(version.digest)
            except NotFound:
                log.warning("%s@%s has no manifest: its files cannot be read", version.name, version.version)
                continue
            sizes = {**await asyncio.to_thread(_blobs_of, manifest), version.digest: len(manifest)}
            changes += References.puts(version.name, version.version, sizes, 0)[1]
    if changes:
        await store.commit(*changes)
    return len(changes) // 2


def _blobs_of(manifest: bytes) -> dict[str, int]:
    try:
        return Bundle.model_validate_json(manifest).blobs()
    except ValueError:
        # Rules may have become stricter since; what it names still belongs to it. Sizes count as nothing then.
        return {blob: 0 for file in json.loads(manifest).get("files", ()) for blob in file.get("blobs", ())}


def _sizes(name: str, version: str, blobs: Mapping[str, int], detail: int) -> tuple[dict[str, int], Put]:
    key = records.key(name, version)
    sizes = {**blobs, f"detail/{key}": detail}
    return sizes, Put(SIZES, key, json.dumps(sizes, separators=(",", ":")).encode(), ((_of_name(name), version),))


def _of_blob(digest: str) -> str:
    return f"blob/{digest}"


def _of_name(name: str) -> str:
    return f"of/{name}"
