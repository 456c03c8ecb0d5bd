"""What a store of records is: the contract that SQLite and Redis both keep (`aenv.testing.stores` checks it).

A record lives in a space under a key. It may stand in indexes, each time with a text to sort by, and a page of an
index is found without looking at the rest of it: that is what keeps a catalogue of a hundred thousand versions as
quick as one of ten. Changes are made in batches, each whole or not at all, and each may say which revision of a
record it starts from.
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
"""What a change may expect of a record besides a revision: nothing at all, or that there is none."""
BY_KEY = "*"
"""The index that every record of a space stands in, sorted by key."""
SCAN_BUDGET = 2000
"""Entries that one page looks at, at the most: a rare combination of indexes comes in several short pages."""
END = "\x1f"
"""Between the text to sort by and the key; no text may have a character as low as this."""


class Stale(AEnvError):
    """Somebody else changed a record first; nothing of the batch was done."""

    code, status, retryable = "stale", 409, True

    def __init__(self, space: str, key: str) -> None:
        super().__init__(f"{space} {key} has changed meanwhile", {"space": space, "key": key})


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept under a key."""

    key: str
    value: bytes
    revision: int
    """Grows with every change of the store and never comes back."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write a record, and stand it in these indexes only."""

    space: str
    key: str
    value: bytes
    entries: tuple[tuple[str, str], ...] = ()
    """Pairs of an index and the text to sort by in it."""
    expires: float | None = None
    """Seconds since 1970; from then on there is no such record."""
    expect: int = ANY


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a record; one that is not there is fine."""

    space: str
    key: str
    expect: int = ANY


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, and go on only if the record is as expected."""

    space: str
    key: str
    expect: int


Change = Put | Delete | Check


@dataclass(frozen=True, slots=True)
class Query:
    """Which records of a space, in which order."""

    space: str
    indexes: tuple[str, ...] = (BY_KEY,)
    """Records that stand in all of them, each time with the same text to sort by."""
    low: str = ""
    """At least this text."""
    high: str = ""
    """Below this text; nothing: no end."""
    reverse: bool = False
    after: str | None = None
    """Where the page before ended."""
    limit: int = 100
    offset: int = 0
    """So many are left out first; for one index only."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some records in order."""

    records: list[Record] = field(default_factory=list)
    next: str | None = None
    """For `Query.after`; None at the end. A page may be short and have one all the same."""


class Store(ABC):
    """Keeps records for any number of processes at once.

    Raises Unavailable when it cannot be reached; what was asked for may be asked again.
    """

    url: str
    """Where it is, without any password."""

    @abstractmethod
    async def get(self, space: str, key: str) -> Record | None:
        """One record."""

    @abstractmethod
    async def get_many(self, space: str, keys: Sequence[str]) -> list[Record | None]:
        """Several, in the order asked for."""

    @abstractmethod
    async def commit(self, *changes: Change) -> int:
        """Do all of it, or nothing; the revision that the written records now have.

        Raises:
            Stale: a record is not as a change expects it.
        """

    @abstractmethod
    async def page(self, query: Query) -> Page:
        """Records in the order of an index."""

    async def all(self, query: Query) -> AsyncIterator[Record]:
        """The records of a query, whatever their number; ``limit`` are looked up at a time."""
        while True:
            page = await self.page(query)
            for record in page.records:
                yield record
            if page.next is None:
                return
            query = replace(query, after=page.next)

    @abstractmethod
    def dump(self) -> AsyncIterator[Put]:
        """Every record there is, with its indexes, for another store to take in."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections."""


class BlockingStore(Store):
    """A store whose driver blocks: each operation runs in a thread."""

    CHUNK: ClassVar[int] = 200

    @abstractmethod
    def _get_many(self, space: str, keys: Sequence[str]) -> list[Record | None]: ...

    @abstractmethod
    def _commit(self, changes: Sequence[Change]) -> int: ...

    @abstractmethod
    def _page(self, query: Query) -> Page: ...

    @abstractmethod
    def _dump(self) -> Iterator[list[Put]]:
        """In chunks."""

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
            raise UsageError("a page needs an index and a limit of at least 1, and takes an offset only with one index")
        return await self._run(self._page, query)

    async def dump(self) -> AsyncIterator[Put]:
        chunks = self._dump()
        while chunk := await self._run(next, chunks, None):
            for put in chunk:
                yield put

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.to_thread(work, *args)


def entries_of(put: Put) -> set[tuple[str, str]]:
    """Index and place in it, the index of all keys among them."""
    return {(BY_KEY, place(put.key, put.key)), *((index, place(sort, put.key)) for index, sort in put.entries)}


def place(sort: str, key: str) -> str:
    """Where an entry stands in its index."""
    return f"{sort}{END}{key}"


def pack(entries: Sequence[tuple[str, str]]) -> str:
    """Entries as one text, to be kept beside the record."""
    return "\x1e".join(f"{index}{END}{sort}" for index, sort in entries)


def unpack(text: str) -> tuple[tuple[str, str], ...]:
    """The same, back."""
    pairs = (entry.partition(END) for entry in text.split("\x1e") if entry)
    return tuple((index, sort) for index, _, sort in pairs)


def _check(change: Change) -> None:
    texts = [change.space, change.key]
    if isinstance(change, Put):
        texts += [text for entry in change.entries for text in entry]
    for text in texts:
        if any(char < " " for char in text):
            raise UsageError(f"{text!r} has a control character; keys, indexes and texts to sort by cannot")
