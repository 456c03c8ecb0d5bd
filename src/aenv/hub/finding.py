"""Finding versions: by name and range, in lists, by words. Each is a look at one end of an index of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aenv.errors import NotFound
from aenv.hub import records, words
from aenv.hub.records import DETAIL, ENV, VERSION, Head
from aenv.schema.hub import EnvPage, EnvSummary, EnvVersion
from aenv.schema.ref import EnvRef, Span, is_digest
from aenv.storage.base import Query, Store


class Finding:
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
        """An environment."""
        await self.ready()
        found = await self.store.get(ENV, name)
        return records.head_of(found) if found else None

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
            return head.current
        version = await self._digest(ref) if is_digest(ref.want) else await self._exact_or_range(ref)
        if version is None:
            raise await self._nothing_fits(ref)
        return version.model_copy(update={"public": head.public, "versions": head.versions})

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
        same = {"public": head.public, "versions": head.versions}
        return EnvPage(items=[item.model_copy(update=same) for item in items], next=page.next)

    async def every_version(self, limit: int, offset: int) -> list[EnvSummary]:
        """Versions of all environments, by name, for who cannot page otherwise."""
        await self.ready()
        page = await self.store.page(Query(VERSION, limit=limit, offset=offset))
        return [records.summary(record) for record in page.records]

    async def heads(
        self,
        indexes: tuple[str, ...],
        visible: Callable[[EnvSummary], bool],
        *,
        prefix: str = "",
        limit: int,
        offset: int = 0,
        after: str | None = None,
    ) -> EnvPage:
        """Environments that stand in all of the indexes, by name."""
        await self.ready()
        if offset and len(indexes) == 1 and visible is everything:
            return await self._heads_page(indexes, visible, prefix, limit, offset, after)
        while offset:
            skipped = await self._heads_page(indexes, visible, prefix, min(offset, 1000), 0, after)
            offset -= len(skipped.items)
            after = skipped.next
            if after is None:
                return EnvPage()
        return await self._heads_page(indexes, visible, prefix, limit, 0, after)

    async def search(
        self, query: str, base: tuple[str, ...], visible: Callable[[EnvSummary], bool], limit: int, after: str | None
    ) -> EnvPage:
        """Environments with all these words; those whose names have them come first.

        The cursor starts with a letter that says which of the two parts it belongs to.
        """
        asked = words.asked(query)
        if not asked:
            return EnvPage()
        items: list[EnvSummary] = []
        part, place = (after[0], after[1:] or None) if after else ("n", None)
        if part == "n":
            page = await self.heads((*(f"name/{w}" for w in asked), *base), visible, limit=limit, after=place)
            if page.next is not None:
                return EnvPage(items=page.items, next=f"n{page.next}")
            items, place = page.items, None
            if len(items) == limit:
                return EnvPage(items=items, next="w")

        def rest(env: EnvSummary) -> bool:
            return visible(env) and not words.has_in_name(env, asked)

        indexes = (*(f"word/{w}" for w in asked), *base)
        page = await self.heads(indexes, rest, limit=limit - len(items), after=place)
        following = None if page.next is None else f"w{page.next}"
        return EnvPage(items=[*items, *page.items], next=following)

    async def _newest(self, name: str, span: Span, without: str = "") -> EnvSummary | None:
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

    async def _heads_page(
        self,
        indexes: tuple[str, ...],
        visible: Callable[[EnvSummary], bool],
        prefix: str,
        limit: int,
        offset: int,
        after: str | None,
    ) -> EnvPage:
        high = f"{prefix}\x7f" if prefix else ""
        page = await self.store.page(
            Query(ENV, indexes, low=prefix, high=high, after=after, limit=limit, offset=offset)
        )
        found = [records.head_of(record).current for record in page.records]
        return EnvPage(items=[env for env in found if env is not None and visible(env)], next=page.next)


def everything(env: EnvSummary) -> bool:
    """For who may see all."""
    return True


def no_env(name: str) -> NotFound:
    """What to say when there is none of that name."""
    return NotFound(f"there is no environment {name} in this hub", name, {"hint": "See what there is: aenv list"})
