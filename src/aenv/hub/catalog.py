"""The catalog: publish, change and delete versions.

Every change is one atomic batch that is conditional on the revisions it has read (optimistic concurrency): of two
concurrent pushes one wins and the other gets an error, and no version is ever half written. The catalog does not check
rights; `aenv.hub.local_hub` does. For a push it does so through a `Gate`, because the owner of a new name must be
decided in the batch that creates the name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from aenv.errors import Conflict, Forbidden, InvalidArguments, InvalidBundle, NotFound
from aenv.hub import records
from aenv.hub.access.rights import Namespaces
from aenv.hub.access.storage_quota import DEFAULT, Quotas
from aenv.hub.queries import EnvQueries, no_env
from aenv.hub.records import DELETED, DETAIL, ENV, VERSION, Head, Tombstone
from aenv.hub.references import References
from aenv.hub.web.webhooks import Webhooks
from aenv.schema.bundle import Bundle, differences, explain
from aenv.schema.envhub import RELEASED, EnvDetail, EnvSummary, Pushed, PushRequest
from aenv.schema.ref import EnvRef, VersionRange
from aenv.storage.base import ABSENT, Change, Check, Delete, Put, Record, Stale, Store
from aenv.storage.blobs import BlobStore

T = TypeVar("T")

Gate = Callable[[Head | None], Awaitable[str]]
"""Takes the environment of a pushed version (None if it is new); raises to refuse, or returns the owner."""
UsableBlobs = Callable[[list[str]], Awaitable[set[str]]]
"""Returns which of the given blobs a push may reference."""

RETRIES = 50
"""Retries of a change that lost against concurrent ones."""
MISSING_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version and its environment, with the revisions that were read."""

    version: EnvSummary
    revision: int
    head: Head
    head_revision: int


@dataclass(frozen=True, slots=True)
class VersionSlot:
    """The records that a published version replaces, as they were read."""

    old: Record | None
    env: Record | None
    tombstone: Record | None
    head: Head

    @property
    def before(self) -> EnvSummary | None:
        """Return the version that the slot holds."""
        return records.parse_summary(self.old) if self.old else None

    def refuse_deleted(self, version: EnvSummary) -> None:
        """Raise Conflict if the number belonged to a deleted release with other content."""
        if self.tombstone is None:
            return
        deleted = Tombstone.model_validate_json(self.tombstone.value)
        if deleted.digest != version.digest:
            raise Conflict(
                f"{version.name}@{version.version} was released and then deleted ({deleted.reason}) with other content",
                version.name,
                {"hint": "Choose another version number."},
            )

    def changes(self, version: EnvSummary) -> list[Change]:
        """Return the writes of the version and its environment, conditional on the revisions that were read."""
        return [
            records.put_version(version, _revision(self.old)),
            records.put_head(self.head, _revision(self.env)),
            Check(DELETED, records.key(version.name, version.version), _revision(self.tombstone)),
        ]


class Catalog(EnvQueries):
    """Environments in a record store, with their files in a blob store."""

    def __init__(
        self,
        store: Store,
        blobs: BlobStore,
        webhooks: Webhooks | None = None,
        *,
        clock: Callable[[], float] = time.time,
        prepare: Callable[[Catalog], Awaitable[None]] | None = None,
        quota: int = DEFAULT,
    ) -> None:
        """``quota``: bytes that a user may occupy; 0: no limit."""
        super().__init__(store, prepare)
        self.blobs = blobs
        self.references = References(store)
        self.quotas = Quotas(store, quota, clock)
        self.namespaces = Namespaces(store)
        self.webhooks = webhooks or Webhooks(None)
        self.clock = clock

    # --- publish

    async def push(
        self,
        request: PushRequest,
        *,
        force: bool,
        author: str,
        builtin: bool = False,
        gate: Gate | None = None,
        usable: UsableBlobs | None = None,
    ) -> Pushed:
        """Publish a version atomically.

        Without a ``gate``, a new environment belongs to the administrators. Without ``usable``, the push may reference
        every blob and no quota applies.
        """
        if not builtin:
            await self.ready()
        bundle = await asyncio.to_thread(_bundle, request.bundle)
        _check_dependencies(request.dependencies)
        await self._check_blobs(bundle, usable)
        digest = await asyncio.to_thread(bundle.digest)
        version = EnvSummary(
            name=bundle.name,
            version=bundle.version,
            digest=digest,
            size=bundle.size,
            files=len(bundle.files) + 1,
            status=RELEASED if builtin else "Ready",
            description=request.description,
            tags=list(dict.fromkeys(request.tags)),
            author=request.author or author,
            builtin=builtin,
            tools=[str(tool.get("name", "")) for tool in request.schemas.tools],
        )
        detail = EnvDetail(
            config=bundle.config,
            readme=request.readme,
            schemas=request.schemas,
            dependencies=request.dependencies,
            artifacts=request.artifacts,
            lock=request.lock,
        )

        async def attempt() -> Pushed:
            return await self._publish(
                version, detail, force=force, public=request.public, bundle=bundle, gate=gate, skip_quota=usable is None
            )

        return await _retry_stale(attempt)

    async def register(
        self, version: EnvSummary, detail: EnvDetail, *, update: bool, gate: Gate | None = None, skip_quota: bool = True
    ) -> None:
        """Store a version without files, or update the description of a version, for legacy clients.

        Raises:
            Conflict: the version exists, and ``update`` is false.
            NotFound: the version does not exist, and ``update`` is true.
            Forbidden: the version is released.
        """

        async def attempt() -> None:
            known = await self._find(version.name, version.version)
            if known is None and update:
                raise _no_version(version.name, version.version)
            if known is not None:
                if gate is not None:
                    await gate(known.head)
                if not update:
                    raise Conflict(f"{version.name}@{version.version} exists already", version.name)
                _refuse_builtin(known.head)
                if known.version.status == RELEASED:
                    raise Forbidden(f"{version.name}@{version.version} is released and cannot change", version.name)
            await self._publish(version, detail, force=True, public=None, bundle=None, gate=gate, skip_quota=skip_quota)

        await _retry_stale(attempt)

    async def _publish(
        self,
        version: EnvSummary,
        detail: EnvDetail,
        *,
        force: bool,
        public: bool | None,
        bundle: Bundle | None,
        gate: Gate | None,
        skip_quota: bool,
    ) -> Pushed:
        """Write a version in one batch that is conditional on what was read.

        Raises:
            Stale: a concurrent change came first.
        """
        slot = await self._slot(version, gate)
        before, head = slot.before, slot.head
        completed = before is not None and not before.digest and before.status != RELEASED
        if before is not None and not completed and (before.status == RELEASED or not force):
            if bundle is not None and before.digest == version.digest:
                return Pushed(version=before, outcome="unchanged")
            raise await self._content_conflict(before, bundle)
        slot.refuse_deleted(version)
        now = self.now()
        head.public = version.builtin or (head.public if public is None else public)
        head.versions += before is None
        version = version.model_copy(update={"created_at": before.created_at if before else now, "updated_at": now})
        version = records.with_env_fields(version, head)
        head.current = await self._current_after(head, before, version)
        put = records.put_detail(version, detail)
        changes = [*slot.changes(version), put]
        changes += await self._charge(version, len(put.value), bundle, head.owner, skip_quota=skip_quota)
        if not version.builtin:
            changes += await self.webhooks.puts("push", version, now)
        if bundle is not None:  # after all checks: a refused push must leave nothing behind
            await self.blobs.put(version.digest, await asyncio.to_thread(bundle.canonical))
        await self.store.commit(*changes)
        return Pushed(version=version, outcome="replaced" if before else "created")

    async def _slot(self, version: EnvSummary, gate: Gate | None) -> VersionSlot:
        """Read the records that a version replaces, and have the gate decide the owner."""
        name, key = version.name, records.key(version.name, version.version)
        old, env, tombstone = await asyncio.gather(
            self.store.get(VERSION, key), self.store.get(ENV, name), self.store.get(DELETED, key)
        )
        head = records.parse_head(env) if env else Head(name=name, builtin=version.builtin)
        if gate is not None:
            head.owner = await gate(head if env else None)
        if head.builtin != version.builtin:
            _refuse_builtin(head)
            raise Conflict(f"the name {name} is taken by another user's environment", name)
        return VersionSlot(old, env, tombstone, head)

    async def _charge(
        self, version: EnvSummary, detail: int, bundle: Bundle | None, owner: str, *, skip_quota: bool
    ) -> list[Change]:
        """Return the changes that record a version's blobs and charge them to the owner's quota.

        ``detail``: the size of the version's details in bytes.
        """
        name, number = version.name, version.version
        if bundle is not None:
            blobs = {**bundle.blobs(), version.digest: len(bundle.canonical())}
            sizes, changes = self.references.puts(name, number, blobs, detail)
        else:
            sizes, changes = await self.references.described(name, number, detail)
        return [
            *changes,
            *await self.quotas.charge(owner, sizes, replaced=records.key(name, number), skip_quota=skip_quota),
        ]

    # --- change and delete

    async def release(self, name: str, version: str) -> EnvSummary:
        """Release a version, which makes it immutable."""
        return await self._change(name, version, "release", lambda known: {"status": RELEASED})

    async def deprecate(self, name: str, version: str, reason: str | None) -> EnvSummary:
        """Mark a version as deprecated; ``reason`` None clears the mark."""
        return await self._change(name, version, "deprecate", lambda known: {"deprecated": reason})

    async def yank(self, name: str, version: str, reason: str | None) -> EnvSummary:
        """Hide a version from ranges, so that only its exact number finds it; ``reason`` None undoes it."""
        return await self._change(name, version, "yank", lambda known: {"yanked": reason})

    async def change_detail(self, name: str, version: str, change: Callable[[EnvDetail], EnvDetail]) -> None:
        """Change the details of a version that is not released."""

        async def attempt() -> None:
            known = await self._require(name, version)
            if known.version.status == RELEASED:
                raise Forbidden(f"{name}@{version} is released and cannot change", name)
            found = await self.store.get(DETAIL, records.key(name, version))
            detail = EnvDetail.model_validate_json(found.value) if found else EnvDetail()
            put = records.put_detail(known.version, change(detail))
            expected = Put(put.space, put.key, put.value, expect=_revision(found))
            await self.store.commit(expected, Check(VERSION, put.key, known.revision))

        await _retry_stale(attempt)

    async def delete(self, name: str, version: str, reason: str, who: str) -> None:
        """Delete a version. A released one leaves a tombstone, so that its number is not reused."""

        async def attempt() -> None:
            known = await self._require(name, version)
            _refuse_builtin(known.head)
            head = known.head
            head.versions -= 1
            head.current = await self._current_after(head, known.version, None)
            key = records.key(name, version)
            changes: list[Change] = [
                Delete(VERSION, key, known.revision),
                Delete(DETAIL, key),
                records.put_head(head, known.head_revision),
                *self.references.deletes(name, version),
            ]
            if known.version.status == RELEASED:
                tombstone = Tombstone(digest=known.version.digest, reason=reason, deleted_at=self.now(), deleted_by=who)
                changes.append(Put(DELETED, key, tombstone.model_dump_json().encode()))
            changes += await self.webhooks.puts("delete", known.version, self.now(), reason=reason)
            await self.store.commit(*changes)

        await _retry_stale(attempt)

    async def set_public(self, name: str, public: bool) -> None:
        """Make an environment public or private."""
        await self.change_head(name, lambda head: {"public": public})

    async def transfer(self, name: str, user: str, *, skip_quota: bool) -> Head:
        """Transfer an environment to a user, and charge its storage to that user's quota."""
        blobs = await self.references.sizes(name)

        async def charge() -> list[Change]:
            return await self.quotas.charge(user, blobs, skip_quota=skip_quota)

        return await self.change_head(name, lambda head: {"owner": user, "grants": _without(head, user)}, charge)

    async def change_head(
        self,
        name: str,
        update: Callable[[Head], dict[str, Any]],
        more: Callable[[], Awaitable[list[Change]]] | None = None,
    ) -> Head:
        """Change the record of an environment, with ``more`` changes in the same batch."""

        async def attempt() -> Head:
            found = await self.store.get(ENV, name)
            head = records.parse_head(found) if found else None
            if found is None or head is None or not head.versions:
                raise no_env(name)
            _refuse_builtin(head)
            head = head.model_copy(update=update(head))
            if head.current is not None:
                head.current = records.with_env_fields(head.current, head)
            await self.store.commit(records.put_head(head, found.revision), *(await more() if more else ()))
            return head

        return await _retry_stale(attempt)

    async def _change(
        self, name: str, version: str, event: str, update: Callable[[StoredVersion], dict[str, Any]]
    ) -> EnvSummary:
        async def attempt() -> EnvSummary:
            known = await self._require(name, version)
            changed = known.version.model_copy(update=update(known))
            if changed == known.version:
                return changed
            _refuse_builtin(known.head)
            now = self.now()
            changed = changed.model_copy(update={"updated_at": now})
            known.head.current = await self._current_after(known.head, known.version, changed)
            await self.store.commit(
                records.put_version(changed, known.revision),
                records.put_head(known.head, known.head_revision),
                *await self.webhooks.puts(event, changed, now),
            )
            return changed

        return await _retry_stale(attempt)

    # --- look up

    async def _find(self, name: str, version: str) -> StoredVersion | None:
        found, env = await asyncio.gather(
            self.store.get(VERSION, records.key(name, version)), self.store.get(ENV, name)
        )
        if found is None or env is None:
            return None
        head = records.parse_head(env)
        return StoredVersion(
            records.with_env_fields(records.parse_summary(found), head), found.revision, head, env.revision
        )

    async def _require(self, name: str, version: str) -> StoredVersion:
        known = await self._find(name, version)
        if known is None:
            raise _no_version(name, version)
        return known

    async def _current_after(
        self, head: Head, before: EnvSummary | None, after: EnvSummary | None
    ) -> EnvSummary | None:
        """Return the current version of an environment after a version changed, or was deleted (``after`` None)."""
        others = head.current
        if before is not None and others is not None and others.version == before.version:
            others = await self._newest(head.name, VersionRange("", ""), without=before.version)
        found = records.preferred(others, after)
        return found and records.with_env_fields(found, head)

    async def _check_blobs(self, bundle: Bundle, usable: UsableBlobs | None) -> None:
        wanted = bundle.blobs()
        sizes = await self.blobs.sizes(list(wanted))
        stored = [digest for digest, size in zip(wanted, sizes, strict=True) if size is not None]
        allowed = set(stored) if usable is None else await usable(stored)
        missing = [digest for digest in wanted if digest not in allowed]
        if missing:
            raise InvalidBundle(
                f"{len(missing)} of the bundle's {len(wanted)} blobs are missing in the hub; upload them first",
                bundle.name,
                {"missing": missing[:MISSING_SHOWN]},
            )
        for (digest, declared), size in zip(wanted.items(), sizes, strict=True):
            if size != declared:
                raise InvalidBundle(f"blob {digest} has {size} bytes, but the manifest says {declared}", bundle.name)

    async def _content_conflict(self, before: EnvSummary, bundle: Bundle | None) -> Conflict:
        details: dict[str, Any] = {"status": before.status, "digest": before.digest}
        if bundle is not None and before.digest:
            old = Bundle.model_validate_json(await self.blobs.get(before.digest))
            details["differs"] = differences(old, bundle)
        where = f"{before.name}@{before.version}"
        if before.status == RELEASED:
            details["hint"] = "Choose another version number: a released version never changes."
            return Conflict(f"{where} is released with other content", before.name, details)
        details["hint"] = "Choose another version number, or replace this version with --force."
        return Conflict(f"{where} exists with other content", before.name, details)

    def now(self) -> str:
        """Return the current time in the format of version timestamps."""
        return datetime.fromtimestamp(self.clock(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _retry_stale(attempt: Callable[[], Awaitable[T]]) -> T:
    """Run a change again for as long as concurrent changes make it stale."""
    for number in range(RETRIES):
        try:
            return await attempt()
        except Stale:
            await asyncio.sleep(0.001 * number)
    return await attempt()


def _revision(record: Record | None) -> int:
    return record.revision if record else ABSENT


def _bundle(data: dict[str, Any]) -> Bundle:
    try:
        return Bundle.model_validate(data)
    except ValidationError as error:
        raise InvalidBundle(explain(error)) from None
    except (ValueError, RecursionError) as error:
        raise InvalidBundle(f"the manifest is not valid: {error}") from None


def _check_dependencies(dependencies: list[str]) -> None:
    for text in dependencies:
        try:
            EnvRef.parse(text)
        except ValueError as error:
            raise InvalidArguments(f"dependencies: {error}") from None


def _without(head: Head, user: str) -> dict[str, Any]:
    return {each: access for each, access in head.grants.items() if each != user}


def _refuse_builtin(head: Head) -> None:
    if head.builtin:
        raise Forbidden(
            f"{head.name} is a built-in environment and cannot be changed", head.name, {"hint": "Choose another name."}
        )


def _no_version(name: str, version: str) -> NotFound:
    return NotFound(f"there is no {name}@{version} in this hub", name, {"hint": "List environments: aenv list"})
