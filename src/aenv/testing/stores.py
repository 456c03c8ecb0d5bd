"""Contract tests for record stores and blob stores.

Subclass `StoreContract` or `BlobContract` with its fixture to run them on a store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aenv.errors import InvalidBundle, NotFound, UsageError
from aenv.schema.bundle import digest_of
from aenv.storage.base import ABSENT, SCAN_BUDGET, Change, Check, Delete, Put, Query, Stale, Store
from aenv.storage.blobs import BlobStore

MakeStore = Callable[[], Store]


class StoreContract:
    """Contract of record stores. The ``store`` fixture is a function without arguments that opens the same store.

    The store is empty at first.
    """

    def _run(self, store: MakeStore, use: Callable[[Store], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            opened = store()
            try:
                return await use(opened)
            finally:
                await opened.close()

        return asyncio.run(asyncio.wait_for(main(), 60))

    def test_a_record_is_read_back_unchanged_also_after_reopening(self, store: MakeStore) -> None:
        value = bytes(range(256)) * 5

        async def put(opened: Store) -> int:
            return await opened.commit(Put("a", "kéy with space", value))

        async def get(opened: Store) -> None:
            found = await opened.get("a", "kéy with space")
            assert found is not None
            assert (found.value, found.revision) == (value, revision)
            assert await opened.get("b", "kéy with space") is None
            many = await opened.get_many("a", ["no", "kéy with space", "neither"])
            assert [record and record.key for record in many] == [None, "kéy with space", None]
            assert await opened.get_many("a", []) == []

        revision = self._run(store, put)
        self._run(store, get)

    def test_a_batch_with_a_stale_expectation_changes_nothing(self, store: MakeStore) -> None:
        async def use(opened: Store) -> None:
            first = await opened.commit(Put("a", "x", b"1", expect=ABSENT))
            second = await opened.commit(Put("a", "x", b"2", expect=first))
            assert second > first
            bad: list[Change] = [
                Put("a", "x", b"3", expect=ABSENT),
                Put("a", "x", b"3", expect=first),
                Delete("a", "x", expect=first),
                Check("a", "x", first),
                Check("a", "nowhere", second),
            ]
            for change in bad:
                refused = None
                try:
                    await opened.commit(Put("a", "y", b"", (("i", "s"),)), change)
                except Stale as stale:
                    refused = stale.details["key"]
                assert refused == change.key, f"{change} went through"
            assert await opened.get("a", "y") is None
            assert (await opened.page(Query("a", ("i",)))).records == []
            await opened.commit(Check("a", "x", second), Check("a", "y", ABSENT), Delete("a", "x", expect=second))
            await opened.commit(Delete("a", "x"))
            third = await opened.commit(Put("a", "x", b"4", expect=ABSENT))
            assert third > second, "a reused revision could satisfy an outdated expectation"

        self._run(store, use)

    def test_concurrent_increments_are_not_lost(self, store: MakeStore) -> None:
        async def count(opened: Store) -> None:
            while True:
                found = await opened.get("a", "n")
                number = int(found.value) if found else 0
                try:
                    await opened.commit(Put("a", "n", b"%d" % (number + 1), expect=found.revision if found else ABSENT))
                except Stale:
                    continue
                return

        async def use(opened: Store) -> None:
            other = store()
            try:
                await asyncio.gather(*(count(each) for each in (opened, other) for _ in range(20)))
            finally:
                await other.close()
            found = await opened.get("a", "n")
            assert found is not None
            assert int(found.value) == 40

        self._run(store, use)

    def test_an_expired_record_is_absent(self, store: MakeStore) -> None:
        async def use(opened: Store) -> None:
            now = time.time()
            await opened.commit(
                Put("a", "old", b"", (("i", "1"),), expires=now - 1),
                Put("a", "new", b"", (("i", "2"),), expires=now + 3600),
                Put("a", "kept", b"", (("i", "3"),)),
            )
            assert await opened.get("a", "old") is None
            assert [r.key for r in (await opened.page(Query("a", ("i",)))).records] == ["new", "kept"]
            assert [r.key for r in (await opened.page(Query("a"))).records] == ["kept", "new"]
            await opened.commit(Put("a", "old", b"again", expect=ABSENT))
            await opened.commit(Put("a", "kept", b"", expires=now - 1))
            await opened.commit(Put("a", "new", b""))
            assert [r.key for r in (await opened.page(Query("a"))).records] == ["new", "old"]

        self._run(store, use)

    def test_pages_cover_all_records_in_both_directions(self, store: MakeStore) -> None:
        keys = [f"k{number:03d}" for number in range(57)]

        async def use(opened: Store) -> None:
            await opened.commit(*(Put("a", key, key.encode(), (("i", f"s{key}"),)) for key in keys))
            await opened.commit(Put("b", "k000", b"", (("i", "sk000"),)))
            for reverse in (False, True):
                seen: list[str] = []
                after, pages = None, 0
                while True:
                    page = await opened.page(Query("a", ("i",), reverse=reverse, after=after, limit=10))
                    seen += [record.key for record in page.records]
                    after, pages = page.next, pages + 1
                    if after is None:
                        break
                assert seen == (keys[::-1] if reverse else keys)
                assert pages in (6, 7)
                every = opened.all(Query("a", ("i",), reverse=reverse, limit=10))
                assert [record.key async for record in every] == seen

        self._run(store, use)

    def test_ranges_and_offsets_work_in_both_directions(self, store: MakeStore) -> None:
        async def use(opened: Store) -> None:
            await opened.commit(*(Put("a", f"k{n}", b"", (("i", f"{n:02d}"),)) for n in range(20)))

            async def keys(**wanted: Any) -> list[str]:
                return [record.key for record in (await opened.page(Query("a", ("i",), **wanted))).records]

            assert await keys(low="05", high="08") == ["k5", "k6", "k7"]
            assert await keys(low="05", high="08", reverse=True, limit=1) == ["k7"]
            assert await keys(low="18") == ["k18", "k19"]
            assert await keys(high="02", reverse=True) == ["k1", "k0"]
            assert await keys(offset=17) == ["k17", "k18", "k19"]
            assert await keys(low="05", offset=13) == ["k18", "k19"]
            assert await keys(low="05", high="09", offset=2) == ["k7", "k8"]
            assert await keys(low="05", high="09", offset=2, reverse=True) == ["k6", "k5"]
            assert await keys(offset=18, reverse=True) == ["k1", "k0"]
            assert await keys(offset=20) == await keys(offset=99, reverse=True) == []
            assert await keys(low="05", high="09", offset=4, reverse=True) == []
            first = await opened.page(Query("a", ("i",), limit=3))
            assert await keys(after=first.next, limit=2, offset=1) == ["k4", "k5"]
            last = await opened.page(Query("a", ("i",), limit=3, reverse=True))
            assert await keys(after=last.next, limit=2, offset=1, reverse=True) == ["k15", "k14"]
            assert await keys(after=first.next, low="10", limit=1) == ["k10"]
            assert [r.key for r in (await opened.page(Query("a", low="k18"))).records][:2] == ["k18", "k19"]

        self._run(store, use)

    def test_order_is_by_code_point(self, store: MakeStore) -> None:
        async def use(opened: Store) -> None:
            texts = ["", "!", "-", ".", "0", "A", "a", "a b", "aa", "z", "~", "é", "漢", "😀"]
            await opened.commit(*(Put("a", f"k{text}", b"", (("i", text),)) for text in reversed(texts)))
            page = await opened.page(Query("a", ("i",)))
            assert [record.key[1:] for record in page.records] == texts

        self._run(store, use)

    def test_a_query_of_several_indexes_is_their_intersection(self, store: MakeStore) -> None:
        async def use(opened: Store) -> None:
            def entries(number: int) -> tuple[tuple[str, str], ...]:
                names = ["all", f"mod{number % 7}", f"mod{number % 5}of5"]
                return tuple((name, f"{number:03d}") for name in names)

            await opened.commit(*(Put("a", f"k{n:03d}", b"", entries(n)) for n in range(200)))
            wanted = [f"k{n:03d}" for n in range(200) if n % 7 == 3 and n % 5 == 2]
            for indexes in (("all", "mod3", "mod2of5"), ("mod2of5", "mod3", "all")):
                for reverse in (False, True):
                    page = await opened.page(Query("a", indexes, reverse=reverse))
                    assert [record.key for record in page.records] == (wanted[::-1] if reverse else wanted)
                    assert page.next is None
            assert (await opened.page(Query("a", ("all", "nothing")))).records == []

        self._run(store, use)

    def test_a_rare_combination_is_found_in_short_pages(self, store: MakeStore) -> None:
        async def use(opened: Store) -> None:
            many = SCAN_BUDGET * 2 + 10
            for start in range(0, many, 500):
                await opened.commit(
                    *(
                        Put("a", f"{n:05d}", b"", (("even" if n % 2 else "odd", f"{n:05d}"), ("all", f"{n:05d}")))
                        for n in range(start, min(many, start + 500))
                    )
                )
            await opened.commit(Put("a", "99999", b"", (("even", "99999"), ("odd", "99999"))))
            found, after, pages = [], None, 0
            while True:
                page = await opened.page(Query("a", ("odd", "even"), after=after))
                found += page.records
                after, pages = page.next, pages + 1
                if after is None:
                    break
            assert [record.key for record in found] == ["99999"]
            assert pages >= 2

        self._run(store, use)

    def test_a_record_is_only_in_the_indexes_of_its_last_put(self, store: MakeStore) -> None:
        async def use(opened: Store) -> None:
            await opened.commit(Put("a", "x", b"", (("i", "1"), ("j", "1"))))
            await opened.commit(Put("a", "x", b"", (("i", "2"),)))
            assert (await opened.page(Query("a", ("j",)))).records == []
            assert len((await opened.page(Query("a", ("i",)))).records) == 1
            assert (await opened.page(Query("a", ("i",), high="2"))).records == []
            await opened.commit(Delete("a", "x"))
            assert (await opened.page(Query("a", ("i",)))).records == []
            assert (await opened.page(Query("a"))).records == []

        self._run(store, use)

    def test_a_dump_has_every_record_with_its_indexes(self, store: MakeStore) -> None:
        far = time.time() + 86400

        async def use(opened: Store) -> None:
            puts = {(s, f"k{n}"): Put(s, f"k{n}", b"v", (("i", str(n)),)) for s in ("a", "b") for n in range(300)}
            puts["c", "x"] = Put("c", "x", b"\0", expires=far)
            await opened.commit(*puts.values())
            await opened.commit(Put("c", "gone", b"", expires=1.0))
            dumped = {(put.space, put.key): put async for put in opened.dump() if put.key != "gone"}
            assert dumped.keys() == puts.keys()
            assert dumped["a", "k7"] == puts["a", "k7"]
            assert abs((dumped["c", "x"].expires or 0) - far) < 0.01

        self._run(store, use)

    def test_invalid_keys_and_queries_are_refused(self, store: MakeStore) -> None:
        async def use(opened: Store) -> None:
            for change in (
                Put("a", "x\n", b""),
                Put("a", "x", b"", (("i\x1f", ""),)),
                Put("a", "", b"", (("i", "\0"),)),
            ):
                try:
                    await opened.commit(change)
                except UsageError:
                    continue
                raise AssertionError(f"{change} went through")
            for query in (Query("a", ()), Query("a", limit=0), Query("a", offset=-1), Query("a", ("i", "j"), offset=1)):
                try:
                    await opened.page(query)
                except UsageError:
                    continue
                raise AssertionError(f"{query} went through")

        self._run(store, use)


MakeBlobs = Callable[[], BlobStore]


class BlobContract:
    """Contract of blob stores. The ``blobs`` fixture is a function without arguments that opens the same store.

    The store is empty at first.
    """

    def _run(self, blobs: MakeBlobs, use: Callable[[BlobStore], Awaitable[None]]) -> None:
        async def main() -> None:
            opened = blobs()
            try:
                await use(opened)
            finally:
                await opened.close()

        asyncio.run(asyncio.wait_for(main(), 60))

    def test_a_blob_is_read_back_unchanged_and_stored_once(self, blobs: MakeBlobs) -> None:
        data = [b"", b"x", bytes(range(256)) * 4096]
        digests = [digest_of(each) for each in data]

        async def put(opened: BlobStore) -> None:
            assert await opened.sizes(digests) == [None, None, None]
            for digest, each in zip(digests, data, strict=True):
                await opened.put(digest, each)
                await opened.put(digest, each)

        async def get(opened: BlobStore) -> None:
            assert await opened.sizes([*digests, digest_of(b"no")]) == [0, 1, 1 << 20, None]
            assert [await opened.get(digest) for digest in digests] == data
            assert sorted([digest async for digest in opened.walk()]) == sorted(digests)

        self._run(blobs, put)
        self._run(blobs, get)

    def test_bytes_that_do_not_match_their_digest_are_refused(self, blobs: MakeBlobs) -> None:
        async def use(opened: BlobStore) -> None:
            refused = False
            try:
                await opened.put(digest_of(b"one"), b"two")
            except InvalidBundle:
                refused = True
            assert refused
            assert await opened.sizes([digest_of(b"one"), digest_of(b"two")]) == [None, None]

        self._run(blobs, use)

    def test_a_missing_blob_is_not_found(self, blobs: MakeBlobs) -> None:
        async def use(opened: BlobStore) -> None:
            found = True
            try:
                await opened.get(digest_of(b"nothing"))
            except NotFound:
                found = False
            assert not found
            assert await opened.delete_older(digest_of(b"nothing"), 0.0)

        self._run(blobs, use)

    def test_only_old_blobs_are_deleted(self, blobs: MakeBlobs) -> None:
        async def use(opened: BlobStore) -> None:
            digest = digest_of(b"young")
            await opened.put(digest, b"young")
            assert not await opened.delete_older(digest, 3600.0)
            assert await opened.get(digest) == b"young"
            assert await opened.delete_older(digest, -60.0)
            assert await opened.sizes([digest]) == [None]

        self._run(blobs, use)
