"""Hub maintenance: migrate, back up, restore, and garbage-collect blobs.

A backup is a tar archive: ``records.jsonl``, then the blobs that those records reference. Records are read first, and
only garbage collection removes blobs, so a backup of a hub in use is consistent too.
"""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from aenv.errors import ConfigError, NotFound, UsageError
from aenv.hub.records import VERSION, parse_summary
from aenv.hub.references import require_indexing
from aenv.schema.bundle import Bundle, digest_of
from aenv.storage.base import Put, Query, Record, Store
from aenv.storage.blobs import BlobStore

GRACE_SECONDS = 24 * 3600.0
"""Blobs that were uploaded or requested within this time are not collected: a push may be in progress."""
RECORDS = "records.jsonl"
BLOBS = "blobs/"
BATCH = 100
FORMAT = {"format": 1, "what": "aenv hub backup"}


@dataclass(slots=True)
class MigrationResult:
    """Counts of a migration, backup or restore."""

    records: int = 0
    blobs: int = 0
    bytes: int = 0
    missing: int = 0
    """Blobs that a version references and the source lacks."""


@dataclass(slots=True)
class CollectionResult:
    """Counts of a garbage collection."""

    kept: int = 0
    removed: int = 0
    young: int = 0
    """Unreferenced, but within the grace period."""


Progress = Callable[[int], None]


async def migrate(
    source: Store, source_blobs: BlobStore, target: Store, target_blobs: BlobStore, progress: Progress
) -> MigrationResult:
    """Copy all records and blobs. Idempotent: existing records are overwritten, existing blobs are skipped."""
    moved = MigrationResult()
    if source_blobs.url != target_blobs.url:
        async for digest in manifest_digests(source):
            await _copy_bundle(moved, source_blobs, target_blobs, digest)
            progress(moved.blobs)
    batch: list[Put] = []
    async for put in source.dump():
        batch.append(put)
        moved.records += 1
        if len(batch) == BATCH:
            await target.commit(*batch)
            batch = []
            progress(moved.records)
    if batch:
        await target.commit(*batch)
    await require_indexing(target)
    return moved


async def backup(store: Store, blobs: BlobStore, file: Path, progress: Progress) -> MigrationResult:
    """Write all records and blobs into one file, atomically."""
    moved = MigrationResult()
    part = file.with_name(f".{file.name}.part")
    try:
        part.touch(0o600)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as raw:
            with tarfile.open(fileobj=raw, mode="w|") as tar:
                lines = [json.dumps(FORMAT)]
                wanted: dict[str, None] = {}
                async for put in store.dump():
                    lines.append(_dump_line(put))
                    moved.records += 1
                    if put.space == VERSION:
                        wanted[parse_summary(Record(put.key, put.value, 0)).digest] = None
                _add_member(tar, RECORDS, "\n".join(lines).encode())
                async for digest in _bundle_blobs(blobs, wanted):
                    data = await _get(blobs, digest)
                    if data is None:
                        moved.missing += 1
                        continue
                    _add_member(tar, BLOBS + digest.removeprefix("sha256:"), data)
                    moved.blobs += 1
                    moved.bytes += len(data)
                    progress(moved.blobs)
            raw.flush()
            os.fsync(raw.fileno())
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)
    return moved


async def restore(store: Store, blobs: BlobStore, file: Path, progress: Progress, *, force: bool) -> MigrationResult:
    """Restore a backup. A hub with versions of its own is refused, unless ``force`` merges the two."""
    if not force and [put async for put in _own_versions(store)]:
        raise UsageError(
            f"the hub at {store.url} is not empty", {"hint": "Use --force to merge the backup's versions into it."}
        )
    moved = MigrationResult()
    records: list[Put] = []
    try:
        with tarfile.open(file, "r|*") as tar:
            for member in tar:
                stream = tar.extractfile(member)
                data = stream.read() if stream else b""
                if member.name == RECORDS:
                    records = _parse_records(data)
                elif member.name.startswith(BLOBS):
                    await blobs.put(digest_of(data), data)
                    moved.blobs += 1
                    moved.bytes += len(data)
                    progress(moved.blobs)
    except (tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is not a hub backup: {error}") from None
    if not records:
        raise ConfigError(f"{file} is not a hub backup: it has no {RECORDS}")
    for start in range(0, len(records), BATCH):
        await store.commit(*records[start : start + BATCH])
    await require_indexing(store)
    moved.records = len(records)
    return moved


async def collect(
    store: Store, blobs: BlobStore, *, grace: float = GRACE_SECONDS, dry_run: bool = False
) -> CollectionResult:
    """Delete the blobs that no version references."""
    wanted = {digest async for digest in _bundle_blobs(blobs, await _manifests(store))}
    done = CollectionResult()
    async for digest in blobs.walk():
        if digest in wanted:
            done.kept += 1
        elif dry_run or await blobs.delete_older(digest, grace):
            done.removed += 1
        else:
            done.young += 1
    return done


async def manifest_digests(store: Store) -> AsyncIterator[str]:
    """Yield the manifest digests of all versions, without the blobs of their files."""
    for digest in await _manifests(store):
        yield digest


async def _manifests(store: Store) -> dict[str, None]:
    digests = [parse_summary(record).digest async for record in store.all(Query(VERSION, limit=1000))]
    return dict.fromkeys(digest for digest in digests if digest)


async def _bundle_blobs(blobs: BlobStore, manifests: dict[str, None]) -> AsyncIterator[str]:
    """Yield every blob that these bundles reference once, including their manifests."""
    seen: set[str] = set()
    for digest in manifests:
        if not digest or digest in seen:
            continue
        seen.add(digest)
        yield digest
        data = await _get(blobs, digest)
        for blob in _manifest_blobs(data) if data is not None else ():
            if blob not in seen:
                seen.add(blob)
                yield blob


def _manifest_blobs(manifest: bytes) -> list[str]:
    try:
        return list(Bundle.model_validate_json(manifest).blobs())
    except ValidationError:
        # Validation may have become stricter since; the manifest's blobs are needed all the same.
        return [blob for file in json.loads(manifest).get("files", ()) for blob in file.get("blobs", ())]


async def _copy_bundle(moved: MigrationResult, source: BlobStore, target: BlobStore, manifest: str) -> None:
    async for digest in _bundle_blobs(source, {manifest: None}):
        if (await target.sizes([digest]))[0] is not None:
            continue
        data = await _get(source, digest)
        if data is None:
            moved.missing += 1
            continue
        await target.put(digest, data)
        moved.blobs += 1
        moved.bytes += len(data)


async def _get(blobs: BlobStore, digest: str) -> bytes | None:
    try:
        return await blobs.get(digest)
    except NotFound:
        return None


async def _own_versions(store: Store) -> AsyncIterator[Record]:
    page = await store.page(Query(VERSION, limit=1000))
    for record in page.records:
        if not parse_summary(record).builtin:
            yield record


def _dump_line(put: Put) -> str:
    value = base64.b64encode(put.value).decode()
    return json.dumps([put.space, put.key, value, put.entries, put.expires])


def _parse_records(data: bytes) -> list[Put]:
    first, *lines = data.decode().splitlines()
    if json.loads(first) != FORMAT:
        raise ValueError("unknown format, or written by a newer aenv")
    puts = []
    for line in lines:
        space, key, value, entries, expires = json.loads(line)
        puts.append(Put(space, key, base64.b64decode(value), tuple((i, s) for i, s in entries), expires))
    return puts


def _add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))
