"""Finding versions: by name and range, in lists, by words. Each is a look at one end of an index of the store."""

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
from aenv.storage.base import Page, Query, Store, place

SCANNED = 500
"""Records that are read at a time where some of them may have to be passed over."""

Visible = Callable[[Head], bool]


def everything(head: Head) -> bool:
    """For who may see all."""
    return True


@dataclass(frozen=True, slots=True)
class Part:
    """Environments that stand in some indexes, with names in a range."""

    indexes: tuple[str, ...] = ()
    low: str = ""
    high: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What may be seen: all that fits, which lies in these parts.

    So a list costs what it shows, however much there is in the hub that may not be seen.
    """

    fits: Visible = everything
    parts: tuple[Part, ...] = (Part(),)


EVERYTHING = View()


class EnvQueries:
    """What there is in a store."""

    def __init__(self, store: Store, prepare: Callable[[Any], Awaitable[None]] | None = None) -> None:
        self.store = store
        self._prepare = prepare
        """Done once, before the first look."""
        self._preparing = asyncio.Lock()

    async def ready(self) -> None:
        """Have it prepared."""
        if self._prepare is None:
            return
        async with self._preparing:
            if self._prepare is not None:
                await self._prepare(self)
                self._prepare = None

    async def head(self, name: str) -> Head | None:
        """An environment; None when it has no version."""
        await self.ready()
        found = await self.store.get(ENV, name)
        head = records.head_of(found) if found else None
        return head if head is not None and head.versions else None

    async def resolve(self, ref: EnvRef, head: Head | None = None) -> EnvSummary:
        """The version that a reference stands for; ``head`` is its environment, where that was looked up already.

        Raises:
            NotFound: nothing fits; the message says what there is.
        """
        head = head or await self.head(ref.name)
        if head is None:
            raise no_env(ref.name)
        if not ref.want:
            if head.current is None:
                raise NotFound(f"every version of {ref.name} was yanked; name the one you want exactly", ref.name)
            return records.shown(head.current, head)
        version = await self._digest(ref) if is_digest(ref.want) else await self._exact_or_range(ref)
        if version is None:
            raise await self._nothing_fits(ref)
        return records.shown(version, head)

    async def get(self, ref: EnvRef, head: Head | None = None) -> EnvVersion:
        """The same, with all that is kept of it."""
        version = await self.resolve(ref, head)
        detail = await self.store.get(DETAIL, records.key(version.name, version.version))
        return records.whole(version, detail)

    async def details(self, versions: list[EnvSummary]) -> list[EnvVersion]:
        """Several at once."""
        keys = [records.key(version.name, version.version) for version in versions]
        found = await self.store.get_many(DETAIL, keys)
        return [records.whole(version, detail) for version, detail in zip(versions, found, strict=True)]

    async def versions(self, name: str, limit: int, after: str | None) -> EnvPage:
        """All versions, the newest first."""
        head = await self.head(name)
        if head is None:
            raise no_env(name)
        page = await self.store.page(Query(VERSION, (records.of_name(name),), reverse=True, limit=limit, after=after))
        items = [records.summary(record) for record in page.records]
        return EnvPage(items=[records.shown(item, head) for item in items], next=page.next)

    async def every_version(self, visible: Visible, limit: int, offset: int) -> list[EnvSummary]:
        """Return versions of all environments that may be seen, by name, for clients that know no pages."""
        await self.ready()
        heads: dict[str, Head | None] = {}
        found: list[EnvSummary] = []
        page, query = Page(next=""), Query(VERSION, limit=SCANNED)
        while page.next is not None and len(found) < offset + limit:
            page = await self.store.page(query)
            query = replace(query, after=page.next)
            for version in map(records.summary, page.records):
                if version.name not in heads:
                    heads = {version.name: await self.head(version.name)}
                head = heads[version.name]
                if head is not None and visible(head):
                    found.append(records.shown(version, head))
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
        """Environments that stand in all of the indexes, by name.

        What may not be seen is passed over, and leaves no trace: neither a short page nor a cursor with its name.
        """
        await self.ready()
        high = f"{prefix}\x7f" if prefix else ""
        if view is EVERYTHING and (not offset or len(indexes) == 1):
            query = Query(ENV, indexes, low=prefix, high=high, after=after, limit=limit, offset=offset)
            page = await self.store.page(query)
            heads = [records.head_of(record) for record in page.records]
            whole = [records.shown(head.current, head) for head in heads if head.current is not None]
            return EnvPage(items=whole, next=page.next)
        enough, found = offset + limit + 1, dict[str, EnvSummary]()
        for part in view.parts:
            low, ends = max(prefix, part.low), [end for end in (high, part.high) if end]
            query = Query(ENV, (*indexes, *part.indexes), low, min(ends, default=""), after=after)
            for head in await self._some(replace(query, limit=min(enough, SCANNED)), view.fits, enough):
                assert head.current is not None
                found[head.name] = records.shown(head.current, head)
        names = sorted(found)[:enough]
        items = [found[name] for name in names[offset : offset + limit]]
        more = len(names) == enough
        return EnvPage(items=items, next=place(items[-1].name, items[-1].name) if more else None)

    async def _some(self, query: Query, fits: Visible, enough: int) -> list[Head]:
        """The first environments of a query that fit and stand for something."""
        found: list[Head] = []
        while len(found) < enough:
            page = await self.store.page(query)
            heads = [records.head_of(record) for record in page.records]
            found += [head for head in heads if head.current is not None and fits(head)]
            if page.next is None:
                break
            query = replace(query, after=page.next, limit=SCANNED)
        return found[:enough]

    async def search(self, query: str, view: View, limit: int, after: str | None) -> EnvPage:
        """Environments with all these words; those whose names have them come first.

        The cursor starts with a letter that says which of the two parts it belongs to.
        """
        asked = search_terms.asked(query)
        if not asked:
            return EnvPage()
        items: list[EnvSummary] = []
        part, place = (after[0], after[1:] or None) if after else ("n", None)
        if part == "n":
            page = await self.heads(tuple(f"name/{w}" for w in asked), view, limit=limit, after=place)
            if page.next is not None:
                return EnvPage(items=page.items, next=f"n{page.next}")
            items, place = page.items, None
            if len(items) == limit:
                return EnvPage(items=items, next="w")

        def rest(head: Head) -> bool:
            return head.current is not None and view.fits(head) and not search_terms.has_in_name(head.current, asked)

        indexes = tuple(f"word/{w}" for w in asked)
        page = await self.heads(indexes, View(rest, view.parts), limit=limit - len(items), after=place)
        following = None if page.next is None else f"w{page.next}"
        return EnvPage(items=[*items, *page.items], next=following)

    async def _newest(self, name: str, span: VersionRange, without: str = "") -> EnvSummary | None:
        for number in records.CHANNELS:
            page = await self.store.page(
                Query(VERSION, (records.of_channel(name, number),), span.low, span.high, reverse=True, limit=2)
            )
            found = [version for version in map(records.summary, page.records) if version.version != without]
            if found:
                return found[0]
        return None

    async def _digest(self, ref: EnvRef) -> EnvSummary | None:
        page = await self.store.page(
            Query(VERSION, (records.of_digest(ref.name),), low=ref.want, high=f"{ref.want}!", limit=1)
        )
        return records.summary(page.records[0]) if page.records else None

    async def _exact_or_range(self, ref: EnvRef) -> EnvSummary | None:
        found = await self.store.get(VERSION, records.key(ref.name, ref.want))
        if found is not None:
            return records.summary(found)
        return await self._newest(ref.name, ref.span) if ref.span is not None else None

    async def _nothing_fits(self, ref: EnvRef) -> NotFound:
        page = await self.versions(ref.name, 5, None)
        there = ", ".join(item.version for item in page.items)
        more = ", …" if page.next else ""
        return NotFound(f"no version of {ref.name} is {ref.want}; there are {there}{more}", ref.name)


def no_env(name: str) -> NotFound:
    """What to say when there is none of that name."""
    return NotFound(f"there is no environment {name} in this hub", name, {"hint": "See what there is: aenv list"})
