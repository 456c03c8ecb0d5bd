"""Read queries: resolve a reference, list, search. Each reads a range of an index, not the whole store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from aenv.errors import NotFound
from aenv.hub import records, search_terms
from aenv.hub.records import DETAIL, ENV, VERSION, Head
from aenv.schema.envhub import EnvPage, EnvSummary, EnvVersion
from aenv.schema.ref import EnvRef, VersionRange, is_digest
from aenv.storage.base import Page, Query, Store, position

SCANNED = 500
"""Page size for queries whose records are filtered afterwards."""

Visible = Callable[[Head], bool]


def everything(head: Head) -> bool:
    """Accept every environment."""
    return True


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Environments in all of some indexes, with names from ``low`` to below ``high``."""

    indexes: tuple[str, ...] = ()
    low: str = ""
    high: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """Environments visible to a caller: the union of ``ranges``, filtered by ``fits``.

    Reading only these ranges makes a list cost what it shows, regardless of how much else the hub holds.
    """

    fits: Visible = everything
    ranges: tuple[IndexRange, ...] = (IndexRange(),)


EVERYTHING = View()


class EnvQueries:
    """Read queries on the environments of a store."""

    def __init__(self, store: Store, prepare: Callable[[Any], Awaitable[None]] | None = None) -> None:
        self.store = store
        self._prepare = prepare
        """Runs once, before the first query."""
        self._preparing = asyncio.Lock()

    async def ready(self) -> None:
        """Prepare the store, unless that is done."""
        if self._prepare is None:
            return
        async with self._preparing:
            if self._prepare is not None:
                await self._prepare(self)
                self._prepare = None

    async def head(self, name: str) -> Head | None:
        """Return an environment; None if it has no version."""
        await self.ready()
        found = await self.store.get(ENV, name)
        head = records.parse_head(found) if found else None
        return head if head is not None and head.versions else None

    async def resolve(self, ref: EnvRef, head: Head | None = None) -> EnvSummary:
        """Return the version that a reference resolves to. ``head``: its environment, if already read.

        Raises:
            NotFound: no version matches; the message lists the versions there are.
        """
        head = head or await self.head(ref.name)
        if head is None:
            raise no_env(ref.name)
        if not ref.want:
            if head.current is None:
                raise NotFound(f"every version of {ref.name} was yanked; name an exact version", ref.name)
            return records.with_env_fields(head.current, head)
        version = await self._digest(ref) if is_digest(ref.want) else await self._exact_or_range(ref)
        if version is None:
            raise await self._no_match(ref)
        return records.with_env_fields(version, head)

    async def get(self, ref: EnvRef, head: Head | None = None) -> EnvVersion:
        """Return the version that a reference resolves to, with its details."""
        version = await self.resolve(ref, head)
        detail = await self.store.get(DETAIL, records.key(version.name, version.version))
        return records.full_version(version, detail)

    async def details(self, versions: list[EnvSummary]) -> list[EnvVersion]:
        """Return versions with their details."""
        keys = [records.key(version.name, version.version) for version in versions]
        found = await self.store.get_many(DETAIL, keys)
        return [records.full_version(version, detail) for version, detail in zip(versions, found, strict=True)]

    async def versions(self, name: str, limit: int, after: str | None) -> EnvPage:
        """Return a page of an environment's versions, newest first."""
        head = await self.head(name)
        if head is None:
            raise no_env(name)
        page = await self.store.page(
            Query(VERSION, (records.name_index(name),), reverse=True, limit=limit, after=after)
        )
        items = [records.parse_summary(record) for record in page.records]
        return EnvPage(items=[records.with_env_fields(item, head) for item in items], next=page.next)

    async def every_version(self, visible: Visible, limit: int, offset: int) -> list[EnvSummary]:
        """Return versions of all visible environments, by name, for legacy clients without paging."""
        await self.ready()
        heads: dict[str, Head | None] = {}
        found: list[EnvSummary] = []
        page, query = Page(next=""), Query(VERSION, limit=SCANNED)
        while page.next is not None and len(found) < offset + limit:
            page = await self.store.page(query)
            query = replace(query, after=page.next)
            for version in map(records.parse_summary, page.records):
                if version.name not in heads:
                    heads = {version.name: await self.head(version.name)}
                head = heads[version.name]
                if head is not None and visible(head):
                    found.append(records.with_env_fields(version, head))
        return found[offset : offset + limit]

    async def heads(
        self,
        indexes: tuple[str, ...],
        view: View,
        *,
        prefix: str = "",
        limit: int,
        offset: int = 0,
        after: str | None = None,
    ) -> EnvPage:
        """Return a page of the environments in all of the indexes, by name.

        Invisible environments leave no trace: neither a short page nor a cursor with their name.
        """
        await self.ready()
        high = f"{prefix}\x7f" if prefix else ""
        if view is EVERYTHING and (not offset or len(indexes) == 1):
            query = Query(ENV, indexes, low=prefix, high=high, after=after, limit=limit, offset=offset)
            page = await self.store.page(query)
            heads = [records.parse_head(record) for record in page.records]
            current = [records.with_env_fields(head.current, head) for head in heads if head.current is not None]
            return EnvPage(items=current, next=page.next)
        enough, found = offset + limit + 1, dict[str, EnvSummary]()
        for each in view.ranges:
            low, ends = max(prefix, each.low), [end for end in (high, each.high) if end]
            query = Query(ENV, (*indexes, *each.indexes), low, min(ends, default=""), after=after)
            for head in await self._scan(replace(query, limit=min(enough, SCANNED)), view.fits, enough):
                assert head.current is not None
                found[head.name] = records.with_env_fields(head.current, head)
        names = sorted(found)[:enough]
        items = [found[name] for name in names[offset : offset + limit]]
        more = len(names) == enough
        return EnvPage(items=items, next=position(items[-1].name, items[-1].name) if more else None)

    async def _scan(self, query: Query, fits: Visible, enough: int) -> list[Head]:
        """Return the first ``enough`` environments of a query that fit and have a current version."""
        found: list[Head] = []
        while len(found) < enough:
            page = await self.store.page(query)
            heads = [records.parse_head(record) for record in page.records]
            found += [head for head in heads if head.current is not None and fits(head)]
            if page.next is None:
                break
            query = replace(query, after=page.next, limit=SCANNED)
        return found[:enough]

    async def search(self, query: str, view: View, limit: int, after: str | None) -> EnvPage:
        """Return a page of environments that match all words; matches in the name come first.

        The cursor's first letter says which of the two groups it continues: ``n`` (name) or ``w`` (other words).
        """
        query_words = search_terms.query_words(query)
        if not query_words:
            return EnvPage()
        items: list[EnvSummary] = []
        group, cursor = (after[0], after[1:] or None) if after else ("n", None)
        if group == "n":
            page = await self.heads(tuple(f"name/{w}" for w in query_words), view, limit=limit, after=cursor)
            if page.next is not None:
                return EnvPage(items=page.items, next=f"n{page.next}")
            items, cursor = page.items, None
            if len(items) == limit:
                return EnvPage(items=items, next="w")

        def other_match(head: Head) -> bool:
            return (
                head.current is not None and view.fits(head) and not search_terms.has_in_name(head.current, query_words)
            )

        indexes = tuple(f"word/{w}" for w in query_words)
        page = await self.heads(indexes, View(other_match, view.ranges), limit=limit - len(items), after=cursor)
        following = None if page.next is None else f"w{page.next}"
        return EnvPage(items=[*items, *page.items], next=following)

    async def _newest(self, name: str, versions: VersionRange, without: str = "") -> EnvSummary | None:
        for number in records.CHANNELS:
            page = await self.store.page(
                Query(
                    VERSION, (records.channel_index(name, number),), versions.low, versions.high, reverse=True, limit=2
                )
            )
            found = [version for version in map(records.parse_summary, page.records) if version.version != without]
            if found:
                return found[0]
        return None

    async def _digest(self, ref: EnvRef) -> EnvSummary | None:
        page = await self.store.page(
            Query(VERSION, (records.digest_index(ref.name),), low=ref.want, high=f"{ref.want}!", limit=1)
        )
        return records.parse_summary(page.records[0]) if page.records else None

    async def _exact_or_range(self, ref: EnvRef) -> EnvSummary | None:
        found = await self.store.get(VERSION, records.key(ref.name, ref.want))
        if found is not None:
            return records.parse_summary(found)
        return await self._newest(ref.name, ref.range) if ref.range is not None else None

    async def _no_match(self, ref: EnvRef) -> NotFound:
        page = await self.versions(ref.name, 5, None)
        available = ", ".join(item.version for item in page.items)
        more = ", …" if page.next else ""
        return NotFound(f"no version of {ref.name} matches {ref.want}; available: {available}{more}", ref.name)


def no_env(name: str) -> NotFound:
    """Return the error for an environment that does not exist."""
    return NotFound(f"there is no environment {name} in this hub", name, {"hint": "List environments: aenv list"})
