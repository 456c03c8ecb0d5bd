"""The record store interface, implemented on SQLite and Redis (`aenv.testing.stores` tests its contract).

A record has a key in a space. It may have entries in indexes, each with a sort key, and a page of an index is read
without scanning the rest: a catalog of a hundred thousand versions is as fast as one of ten. Changes are committed in
atomic batches, and each change may be conditional on a record's revision.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from aenv.errors import AEnvError, UsageError

T = TypeVar("T")

ANY, ABSENT = -1, 0
"""Special values of ``expect``: no condition, or the record must not exist. Others are revisions."""
BY_KEY = "*"
"""Index of all records of a space, sorted by key."""
SCAN_BUDGET = 2000
"""Maximum entries that one page scans. A rare combination of indexes comes in several short pages."""
SEPARATOR = "\x1f"
"""Separator of sort key and key. It sorts below every character that they may contain."""


class Stale(AEnvError):
    """A record was changed concurrently; nothing of the batch was applied."""

    code, status, retryable = "stale", 409, True

    def __init__(self, space: str, key: str) -> None:
        super().__init__(f"{space} {key} was changed concurrently", {"space": space, "key": key})


@dataclass(frozen=True, slots=True)
class Record:
    """A stored value with its key and revision."""

    key: str
    value: bytes
    revision: int
    """Number of the commit that wrote the record; it only grows and is never reused."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write a record, and replace its index entries."""

    space: str
    key: str
    value: bytes
    entries: tuple[tuple[str, str], ...] = ()
    """Pairs of index and sort key."""
    expires: float | None = None
    """Expiry in seconds since 1970; an expired record counts as absent."""
    expect: int = ANY


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a record. Deleting an absent record is not an error."""

    space: str
    key: str
    expect: int = ANY


@dataclass(frozen=True, slots=True)
class Check:
    """Condition of a batch: the record has the expected revision. It changes nothing."""

    space: str
    key: str
    expect: int


Change = Put | Delete | Check


@dataclass(frozen=True, slots=True)
class Query:
    """Selection and order of records of a space."""

    space: str
    indexes: tuple[str, ...] = (BY_KEY,)
    """Records must have an entry in all of these, with the same sort key."""
    low: str = ""
    """Lowest sort key, inclusive."""
    high: str = ""
    """Highest sort key, exclusive; empty: no limit."""
    reverse: bool = False
    after: str | None = None
    """The `Page.next` of the previous page."""
    limit: int = 100
    offset: int = 0
    """Number of records to skip; only with a single index."""


@dataclass(frozen=True, slots=True)
class Page:
    """Records in the order of a query."""

    records: list[Record] = field(default_factory=list)
    next: str | None = None
    """Cursor for `Query.after`; None at the end. A page with fewer records than its limit can have one too."""


class Store(ABC):
    """A record store that any number of processes may share.

    Operations raise Unavailable when the store cannot be reached; they can be retried.
    """

    url: str
    """URL of the store, without a password."""

    @abstractmethod
    async def get(self, space: str, key: str) -> Record | None:
        """Return a record; None if it does not exist."""

    @abstractmethod
    async def get_many(self, space: str, keys: Sequence[str]) -> list[Record | None]:
        """Return records in the order of the keys; None for each that does not exist."""

    @abstractmethod
    async def commit(self, *changes: Change) -> int:
        """Apply all changes atomically; return the revision of the written records.

        Raises:
            Stale: a record does not have the revision that a change expects.
        """

    @abstractmethod
    async def page(self, query: Query) -> Page:
        """Return a page of records in the order of an index."""

    async def all(self, query: Query) -> AsyncIterator[Record]:
        """Yield all records of a query, reading ``limit`` at a time."""
        while True:
            page = await self.page(query)
            for record in page.records:
                yield record
            if page.next is None:
                return
            query = replace(query, after=page.next)

    @abstractmethod
    def dump(self) -> AsyncIterator[Put]:
        """Yield every record with its index entries, to be written to another store."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections."""


class BlockingStore(Store):
    """Base of stores with a blocking driver: each operation runs in a thread."""

    CHUNK: ClassVar[int] = 200

    @abstractmethod
    def _get_many(self, space: str, keys: Sequence[str]) -> list[Record | None]: ...

    @abstractmethod
    def _commit(self, changes: Sequence[Change]) -> int: ...

    @abstractmethod
    def _page(self, query: Query) -> Page: ...

    @abstractmethod
    def _dump(self) -> Iterator[list[Put]]:
        """Yield every record, in chunks."""

    async def get(self, space: str, key: str) -> Record | None:
        return (await self._run(self._get_many, space, [key]))[0]

    async def get_many(self, space: str, keys: Sequence[str]) -> list[Record | None]:
        return await self._run(self._get_many, space, keys) if keys else []

    async def commit(self, *changes: Change) -> int:
        for change in changes:
            _check(change)
        return await self._run(self._commit, changes)

    async def page(self, query: Query) -> Page:
        if not query.indexes or query.limit < 1 or query.offset < 0 or (query.offset and len(query.indexes) > 1):
            raise UsageError(
                "a query needs an index and a limit of at least 1; an offset is allowed only with one index"
            )
        return await self._run(self._page, query)

    async def dump(self) -> AsyncIterator[Put]:
        chunks = self._dump()
        while chunk := await self._run(next, chunks, None):
            for put in chunk:
                yield put

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.to_thread(work, *args)


def entries_of(put: Put) -> set[tuple[str, str]]:
    """Return a record's index entries as pairs of index and position, including the index of all keys."""
    return {(BY_KEY, position(put.key, put.key)), *((index, position(sort, put.key)) for index, sort in put.entries)}


def position(sort: str, key: str) -> str:
    """Return the position of an entry in its index."""
    return f"{sort}{SEPARATOR}{key}"


def pack(entries: Sequence[tuple[str, str]]) -> str:
    """Encode index entries as one text, which is stored with the record."""
    return "\x1e".join(f"{index}{SEPARATOR}{sort}" for index, sort in entries)


def unpack(text: str) -> tuple[tuple[str, str], ...]:
    """Decode the text of `pack`."""
    pairs = (entry.partition(SEPARATOR) for entry in text.split("\x1e") if entry)
    return tuple((index, sort) for index, _, sort in pairs)


def _check(change: Change) -> None:
    texts = [change.space, change.key]
    if isinstance(change, Put):
        texts += [text for entry in change.entries for text in entry]
    for text in texts:
        if any(char < " " for char in text):
            raise UsageError(f"{text!r} has a control character; keys, indexes and sort keys must not have any")
