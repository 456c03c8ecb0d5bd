"""Multi-tenancy: owners, grants, namespaces, blobs, quotas, and a store written before environments had owners."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import Conflict, Forbidden, InvalidBundle, NotFound, QuotaExceeded, Unauthorized
from aenv.hub import records
from aenv.hub.access.hub_tokens import OWNER, HubCaller
from aenv.hub.access.storage_quota import BLOCK
from aenv.hub.catalog import Catalog
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.hub.records import Head
from aenv.hub.upkeep import collect
from aenv.hub.web.webhooks import Webhooks
from aenv.schema.bundle import digest_of
from aenv.schema.envhub import Access, EnvDetail, EnvSummary
from aenv.storage.base import Record
from aenv.storage.open_url import open_blobs, open_store
from tests.conftest import run
from tests.hub.parts import bundle_of, push, request_of

BEFORE_OWNERS = Path(__file__).parent / "store-before-owners"
"""Store written by the code of d66acf1: a dump of its SQLite file, and its blobs."""
SECRET = "print('of ann alone')"


class People:
    """One hub with several callers."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.root = LocalHub(catalog, HubCaller("root", "admin"))
        self.ann, self.bob, self.cyd = (LocalHub(catalog, HubCaller(name, "push")) for name in ("ann", "bob", "cyd"))
        self.looker = LocalHub(catalog, HubCaller("bob", "read"))
        self.anonymous = LocalHub(catalog, HubCaller("anyone"))


@pytest.fixture
def hub(store_url: str, tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(quota: int = 0) -> AsyncIterator[People]:
        store = open_store(store_url)
        catalog = Catalog(store, open_blobs(str(tmp_path / "blobs")), Webhooks(store), quota=quota)
        try:
            yield People(catalog)
        finally:
            await store.close()

    return opened


@pytest.mark.attack("tenants")
def test_the_first_user_to_push_a_name_owns_it_and_others_cannot_see_it(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            pushed = await push(people.ann, "notes", "1.0.0", SECRET, description="quixotic", tags=["t"])
            assert pushed.version.owner == "ann"
            digest = pushed.version.digest
            for other in (people.bob, people.looker, people.anonymous):
                for ref in ("", "1.0.0", "1", digest):
                    with pytest.raises(NotFound):
                        await other.get("notes", ref)
                with pytest.raises(NotFound):
                    await other.versions("notes")
                for page in (await other.list(), await other.list("no", ["t"]), await other.search("quixotic")):
                    assert page.items == []
                assert await people.catalog.every_version((await other.view()).fits, 10, 0) == []
            for whose in (people.ann, people.root, LocalHub(people.catalog)):
                assert (await whose.get("notes")).owner == "ann"
                assert [each.name for each in (await whose.search("quixotic")).items] == ["notes"]

    run(main())


CHANGES: dict[str, Callable[[LocalHub], Awaitable[Any]]] = {
    "push another version": lambda hub: push(hub, "notes", "2.0.0"),
    "replace a version": lambda hub: push(hub, "notes", "1.0.0", "print('of bob')", force=True),
    "release": lambda hub: hub.release("notes", "1.0.0"),
    "deprecate": lambda hub: hub.deprecate("notes", "1.0.0", "old"),
    "yank": lambda hub: hub.yank("notes", "1.0.0", "bad"),
    "delete": lambda hub: hub.delete("notes", "1.0.0", "mine now"),
    "make public": lambda hub: hub.set_public("notes", True),
    "push it public": lambda hub: push(hub, "notes", "2.0.0", public=True),
    "see grants": lambda hub: hub.grants("notes"),
    "grant": lambda hub: hub.grant("notes", "bob", "write"),
    "revoke": lambda hub: hub.revoke("notes", "cyd"),
    "transfer": lambda hub: hub.transfer("notes", "bob"),
}
ONLY_OWNERS = ("make public", "push it public", "see grants", "grant", "revoke", "transfer")


@pytest.mark.attack("tenants")
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("granted", [None, "read", "write"])
def test_a_grant_on_an_environment_permits_its_access_level_and_no_more(
    hub: Callable[..., Any], what: str, granted: Access | None
) -> None:
    async def main() -> None:
        async with hub() as people:
            await push(people.ann, "notes", "1.0.0", SECRET)
            await people.ann.grant("notes", "cyd", "read")
            if granted is not None:
                await people.ann.grant("notes", "bob", granted)
            before = [put async for put in people.catalog.store.dump() if put.space not in ("upload", "blob-named")]
            if granted == "write" and what not in ONLY_OWNERS:
                await CHANGES[what](people.bob)
                assert what == "delete" or (await people.root.grants("notes")).owner == "ann"
                return
            with pytest.raises((NotFound, Forbidden)) as caught:
                await CHANGES[what](people.bob)
            if granted is None and not what.startswith(("push", "replace")):
                assert isinstance(caught.value, NotFound)  # only a push reveals that the name is taken
            after = [put async for put in people.catalog.store.dump() if put.space not in ("upload", "blob-named")]
            assert sorted(after, key=lambda put: (put.space, put.key)) == sorted(
                before, key=lambda put: (put.space, put.key)
            )

    run(main())


def test_a_grant_holds_for_one_user_or_every_user_until_it_is_revoked(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            await push(people.ann, "notes", "1.0.0", SECRET)
            await people.ann.grant("notes", "bob", "read")
            assert (await people.looker.get("notes")).name == "notes"
            with pytest.raises(NotFound):
                await people.cyd.get("notes")
            await people.ann.grant("notes", "*", "read")
            assert (await people.cyd.get("notes")).name == "notes"
            with pytest.raises(NotFound):
                await people.anonymous.get("notes")
            await people.ann.revoke("notes", "*")
            await people.ann.revoke("notes", "bob")
            for other in (people.bob, people.cyd):
                with pytest.raises(NotFound):
                    await other.get("notes")
            with pytest.raises(NotFound, match="no grant"):
                await people.ann.revoke("notes", "bob")
            await people.ann.grant("notes", "bob", "write")
            with pytest.raises(Forbidden, match="scope push"):  # bob may write, but this token of his has scope read
                await push(people.looker, "notes", "2.0.0")

    run(main())


def test_a_transferred_environment_belongs_to_its_new_owner_alone(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            await push(people.ann, "notes", "1.0.0", SECRET)
            with pytest.raises(Forbidden, match="scope admin"):
                await people.ann.transfer("notes", "")
            assert (await people.ann.transfer("notes", "bob")).owner == "bob"
            with pytest.raises(NotFound):
                await people.ann.get("notes")
            assert (await people.bob.release("notes", "1.0.0")).owner == "bob"
            assert (await people.root.transfer("notes", "")).owner == ""
            with pytest.raises(NotFound):
                await people.bob.get("notes")

    run(main())


@pytest.mark.attack("tenants")
def test_a_name_keeps_its_owner_when_its_last_version_is_deleted(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            await push(people.ann, "notes", "1.0.0", SECRET)
            await people.ann.delete("notes", "1.0.0", "a mistake")
            assert (await people.root.list()).items == []
            with pytest.raises(NotFound, match="no environment notes"):
                await people.ann.get("notes")
            with pytest.raises(Forbidden, match="belongs to another user"):
                await push(people.bob, "notes", "1.0.1", "print('taken over')")
            assert (await push(people.ann, "notes", "1.0.1")).version.owner == "ann"

    run(main())


@pytest.mark.attack("tenants")
def test_new_names_in_a_reserved_namespace_belong_to_its_owner(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            with pytest.raises(Forbidden, match="scope admin"):
                await people.bob.reserve("team", "bob")
            await people.root.reserve("team", "ann")
            with pytest.raises(Conflict, match="reserved already"):
                await people.root.reserve("team", "bob")
            for name in ("team", "team-env", "team-env-two"):
                with pytest.raises(Forbidden, match="reserved for another user"):
                    await push(people.bob, name, "1.0.0")
            await push(people.bob, "teamwork", "1.0.0")
            await push(people.ann, "team-env", "1.0.0", SECRET)
            assert await people.bob.namespaces() == []
            with pytest.raises(NotFound):
                await people.bob.grant_namespace("team", "bob", "write")
            await people.ann.grant_namespace("team", "bob", "read")
            assert (await people.bob.get("team-env")).name == "team-env"
            assert [each.name for each in (await people.bob.list()).items] == ["team-env", "teamwork"]
            with pytest.raises(Forbidden):
                await push(people.bob, "team-other", "1.0.0")
            with pytest.raises(Forbidden, match="only the owner"):
                await people.bob.grant_namespace("team", "cyd", "read")
            await people.ann.grant_namespace("team", "bob", "write")
            pushed = await push(people.bob, "team-other", "1.0.0")
            assert pushed.version.owner == "ann"
            found = await people.ann.grants("team-other")
            assert (found.grants, found.namespace, found.namespace_grants) == ({}, "team", {"bob": "write"})
            assert [each.name for each in await people.bob.namespaces()] == ["team"]
            await people.ann.revoke_namespace("team", "bob")
            with pytest.raises(NotFound):
                await people.bob.get("team-other")
            await people.root.unreserve("team")
            await push(people.bob, "team-free", "1.0.0")

    run(main())


def test_a_token_for_a_namespace_is_a_grant_on_it_and_a_token_for_all_names_is_not(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            await push(people.ann, "team-env", "1.0.0", SECRET)
            ci = LocalHub(people.catalog, HubCaller("ci", "push", ("team",)))
            assert (await ci.get("team-env")).owner == "ann"
            await push(ci, "team-env", "1.1.0")
            with pytest.raises(Forbidden, match="only the owner"):
                await ci.set_public("team-env", True)
            with pytest.raises(Forbidden, match="restricted to team"):
                await push(ci, "other", "1.0.0")
            reader = LocalHub(people.catalog, HubCaller("ci", "read", ("*",)))
            with pytest.raises(NotFound):
                await reader.get("team-env")

    run(main())


# --- blobs


@pytest.mark.attack("tenants")
def test_a_blob_is_readable_by_users_who_may_read_a_version_that_references_it(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            pushed = await push(people.ann, "notes", "1.0.0", SECRET)
            both = (digest_of(SECRET.encode()), pushed.version.digest)
            for digest in both:
                assert await people.ann.get_blob(digest) == await people.root.get_blob(digest)
                for other in (people.bob, people.looker, people.anonymous):
                    with pytest.raises(NotFound, match="no blob"):
                        await other.get_blob(digest)
            await people.ann.grant("notes", "bob", "read")
            for digest in both:
                assert await people.looker.get_blob(digest)
                with pytest.raises(NotFound):
                    await people.anonymous.get_blob(digest)
            await people.ann.revoke("notes", "bob")
            with pytest.raises(NotFound):
                await people.looker.get_blob(both[0])
            await people.ann.set_public("notes", True)
            assert await people.anonymous.get_blob(both[0]) == SECRET.encode()
            await people.ann.delete("notes", "1.0.0", "no more")
            with pytest.raises(NotFound):
                await people.anonymous.get_blob(both[0])

    run(main())


@pytest.mark.attack("tenants")
def test_knowing_a_digest_gives_no_access_to_its_blob_but_uploading_it_does(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            await push(people.ann, "notes", "1.0.0", SECRET)
            digest = digest_of(SECRET.encode())
            thief, _ = bundle_of("thief", "1.0.0", {"src/env.py": SECRET.encode()})
            assert await people.bob.missing([digest]) == [digest]
            with pytest.raises(InvalidBundle, match="missing in the hub") as caught:
                await people.bob.push(request_of(thief))
            assert caught.value.details["missing"] == [digest]
            none = "sha256:" + "0" * 64
            assert await people.bob.missing([none, digest]) == [none, digest]  # existing or not: the same answer
            with pytest.raises(NotFound):
                await people.bob.get("thief")
            await people.bob.put_blob(digest, SECRET.encode())
            assert await people.bob.missing([digest]) == []
            await people.bob.push(request_of(thief))
            assert await people.bob.get_blob(digest) == SECRET.encode()
            assert await people.ann.missing([digest]) == []

    run(main())


# --- lists


@pytest.mark.attack("tenants")
def test_pages_and_cursors_do_not_reveal_invisible_environments(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            for number in range(6):
                whose = people.ann if number % 2 else people.bob
                await push(whose, f"env-{number}", "1.0.0", description="word")
            for query in ("list", "search"):
                seen, after, cursors = [], None, ""
                while True:
                    if query == "list":
                        page = await people.bob.list(limit=1, after=after)
                    else:
                        page = await people.bob.search("word", limit=1, after=after)
                    seen += [item.name for item in page.items]
                    after = page.next
                    if after is None:
                        break
                    cursors += base64.urlsafe_b64decode(after + "===").decode()
                assert seen == ["env-0", "env-2", "env-4"]
                assert not [number for number in (1, 3, 5) if f"env-{number}" in cursors]
            assert [item.name for item in (await people.bob.list(offset=1)).items] == ["env-2", "env-4"]

    run(main())


def test_a_list_reads_only_the_environments_it_shows(hub: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with hub() as people:
            for number in range(30):
                await push(people.ann, f"env-{number:02d}", "1.0.0", description="word")
            for name in ("env-05", "env-07"):
                await people.ann.grant(name, "bob", "read")
            await people.ann.grant("env-09", "*", "read")
            await people.ann.set_public("env-11", True)
            await push(people.bob, "env-99", "1.0.0", description="word")
            await people.root.reserve("env-2", "bob")
            await people.root.reserve("env-20", "bob")
            read: list[str] = []

            def counted(record: Record) -> Head:
                read.append(record.key)
                return Head.model_validate_json(record.value)

            monkeypatch.setattr(records, "parse_head", counted)
            mine = ["env-05", "env-07", "env-09", "env-11", "env-20", "env-99"]
            assert [item.name for item in (await people.bob.list()).items] == mine
            assert [item.name for item in (await people.bob.search("word")).items] == mine
            assert sorted(set(read)) == mine
            assert [item.name for item in (await people.bob.list("env-0", limit=2)).items] == ["env-05", "env-07"]
            ci = LocalHub(people.catalog, HubCaller("ci", "read", ("env-03", "env-05")))
            assert [item.name for item in (await ci.list()).items] == ["env-03", "env-05", "env-11"]

    run(main())


# --- on behalf of another user


@pytest.mark.attack("tenants")
def test_a_request_on_behalf_of_a_user_is_read_only_and_limited_to_the_rights_of_both(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            await push(people.ann, "notes", "1.0.0", SECRET)
            await push(people.bob, "tools", "1.0.0")
            platform = people.root.on_behalf_of("ann")
            assert [item.name for item in (await platform.list()).items] == ["notes"]
            assert await platform.get_blob((await platform.get("notes")).digest)
            with pytest.raises(NotFound):
                await platform.get("tools")
            for change in (platform.release("notes", "1.0.0"), platform.grant("notes", "bob", "read")):
                with pytest.raises(Forbidden, match="read-only"):
                    await change
            with pytest.raises(NotFound):  # bob's own token may not read it
                await people.bob.on_behalf_of("ann").get("notes")
            with pytest.raises(NotFound):
                await people.anonymous.on_behalf_of("ann").get("notes")

    run(main())


# --- storage


@pytest.mark.attack("tenants")
def test_a_push_beyond_the_quota_is_refused(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub(quota=100_000) as people:
            await push(people.ann, "one", "1.0.0", "x" * 60_000)
            used = (await people.ann.usage()).used
            assert used == 60_000 + 2 * BLOCK  # the manifest and the description count as a block each
            await push(people.ann, "one", "1.0.1", "x" * 60_000)  # a shared blob counts once
            assert (await people.ann.usage()).used == used + 2 * BLOCK
            with pytest.raises(QuotaExceeded, match="storage of ann in this hub is full") as caught:
                await push(people.ann, "two", "1.0.0", "y" * 60_000)
            assert caught.value.details["limit"] == 100_000
            with pytest.raises(NotFound):
                await people.ann.get("two")
            await push(people.bob, "two", "1.0.0", "y" * 60_000)
            with pytest.raises(QuotaExceeded):
                await people.bob.transfer("two", "ann")
            with pytest.raises(QuotaExceeded):  # details of a version count, too
                await push(people.ann, "one", "1.0.2", "x" * 60_000, readme="long" * 10_000)
            for version in ("1.0.0", "1.0.1"):
                await people.ann.delete("one", version, "to make room")
            assert (await people.ann.usage()).used == 0
            await people.bob.transfer("two", "ann")
            with pytest.raises(Forbidden, match="scope admin"):
                await people.bob.set_quota("bob", 0)
            with pytest.raises(Forbidden, match="scope admin"):
                await people.bob.usage("ann")

    run(main())


@pytest.mark.attack("tenants")
def test_small_uploads_and_versions_without_files_count_against_the_quota(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub(quota=10 * BLOCK) as people:
            for number in range(10):
                data = str(number).encode()
                await people.ann.put_blob(digest_of(data), data)
            with pytest.raises(QuotaExceeded):
                await people.ann.put_blob(digest_of(b"one more"), b"one more")
            gate = people.bob.gate("bare")
            version, detail = EnvSummary(name="bare", version="1.0.0"), EnvDetail(config={"about": "x" * 11 * BLOCK})
            with pytest.raises(QuotaExceeded):
                await people.catalog.register(version, detail, update=False, gate=gate, skip_quota=False)
            await people.catalog.register(version, EnvDetail(), update=False, gate=gate, skip_quota=False)
            assert (await people.bob.usage()).used == BLOCK

    run(main())


def test_an_administrator_sets_user_limits_and_has_no_limit(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub(quota=10_000) as people:
            await push(people.root, "large", "1.0.0", "x" * 50_000)
            with pytest.raises(QuotaExceeded):
                await push(people.ann, "notes", "1.0.0", "y" * 50_000)
            assert (await people.root.set_quota("ann", 500_000)).limit == 500_000
            await push(people.ann, "notes", "1.0.0", "y" * 50_000)
            assert (await people.root.set_quota("ann", None)).limit == 10_000
            with pytest.raises(QuotaExceeded):
                await push(people.ann, "notes", "1.0.1", "z")
            assert (await people.root.set_quota("ann", 0)).limit == 0
            await push(people.ann, "notes", "1.0.1", "z" * 50_000)

    run(main())


@pytest.mark.attack("tenants")
def test_unpublished_uploads_count_against_the_quota(hub: Callable[..., Any], tmp_path: Path) -> None:
    async def main() -> None:
        async with hub(quota=100_000) as people:
            data = [bytes([number]) * 40_000 for number in range(3)]
            for part in data[:2]:
                await people.ann.put_blob(digest_of(part), part)
            assert (await people.ann.usage()).uploading == 80_000
            with pytest.raises(QuotaExceeded):
                await people.ann.put_blob(digest_of(data[2]), data[2])
            await people.bob.put_blob(digest_of(data[2]), data[2])
            bundle, _ = bundle_of("notes", "1.0.0", {"a": data[0], "b": data[1]})
            await people.ann.push(request_of(bundle))
            usage = await people.ann.usage()
            assert (usage.uploading, usage.used > 80_000) == (0, True)
            await people.ann.delete("notes", "1.0.0", "to make room")
            done = await collect(people.catalog.store, people.catalog.blobs, grace=-1)
            assert done.removed >= 3
            assert (await people.ann.usage()).used == 0

    run(main())


# --- concurrency


@pytest.mark.attack("tenants")
def test_one_of_two_concurrent_pushes_of_a_new_name_owns_it_and_the_other_is_refused(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            for number in range(5):
                name = f"env-{number}"
                both = [
                    push(people.ann, name, "1.0.0", "print('ann')"),
                    push(people.bob, name, "1.1.0", "print('bob')"),
                ]
                ends = await asyncio.gather(*both, return_exceptions=True)
                (won,) = [end for end in ends if not isinstance(end, BaseException)]
                (lost,) = [end for end in ends if isinstance(end, BaseException)]
                assert isinstance(lost, Forbidden)
                found = await people.root.versions(name)
                assert [(item.owner, item.version) for item in found.items] == [
                    (won.version.owner, won.version.version)
                ]

    run(main())


@pytest.mark.attack("tenants")
def test_concurrent_pushes_cannot_exceed_a_quota_together(hub: Callable[..., Any]) -> None:
    async def main() -> None:
        async with hub() as people:
            contents = [str(number) * 40_000 for number in range(4)]
            for content in contents:
                await people.ann.put_blob(digest_of(content.encode()), content.encode())
            await people.root.set_quota("ann", 100_000)
            pushes = [push(people.ann, f"env-{number}", "1.0.0", content) for number, content in enumerate(contents)]
            ends = await asyncio.gather(*pushes, return_exceptions=True)
            assert [type(end) for end in ends].count(QuotaExceeded) == 2
            assert (await people.ann.usage()).used <= 100_000

    run(main())


# --- a store without owners


@pytest.fixture
def before_owners(tmp_path: Path) -> HubLocation:
    """Location of a copy of the store without owners."""
    folder = tmp_path / "before"
    shutil.copytree(BEFORE_OWNERS / "blobs", folder / "blobs")
    with contextlib.closing(sqlite3.connect(folder / "hub.db")) as db:
        db.executescript((BEFORE_OWNERS / "hub.sql").read_text())
        db.execute("PRAGMA journal_mode = WAL")
    return HubLocation.of(str(folder / "hub.db"))


@pytest.mark.attack("tenants")
def test_environments_of_a_store_without_owners_belong_to_the_administrators(before_owners: HubLocation) -> None:
    async def main() -> None:
        catalog = open_catalog(before_owners)
        try:
            people = People(catalog)
            own = [each for each in (await people.root.list()).items if not each.builtin]
            assert [(each.name, each.version, each.owner) for each in own] == [
                ("local", "0.1.0", ""), ("notes", "1.0.0", ""), ("shared", "1.0.0", ""),
            ]  # fmt: skip
            assert [each.name for each in (await people.ann.list()).items if not each.builtin] == ["shared"]
            secret = digest_of(b"print('notes 1.0.0')")
            for other in (people.ann, people.bob, people.anonymous):
                with pytest.raises(NotFound):
                    await other.get("notes")
                with pytest.raises(NotFound):
                    await other.get_blob(secret)
                assert await other.get_blob(digest_of(b"print('shared')"))
            with pytest.raises(Forbidden, match="belongs to another user"):
                await push(people.ann, "notes", "1.2.0")
            with pytest.raises(Forbidden):
                await people.bob.yank("shared", "1.0.0", "mine")
            with pytest.raises(Unauthorized):
                await people.anonymous.yank("shared", "1.0.0", "mine")
            assert await people.root.get_blob(secret) == b"print('notes 1.0.0')"
            assert await LocalHub(catalog, OWNER).get_blob(secret)
            await people.root.transfer("notes", "ann")
            await people.root.grant("notes", "bob", "read")
            assert await people.bob.get_blob(secret) == b"print('notes 1.0.0')"
            await push(people.ann, "notes", "1.2.0")
            assert (await people.ann.usage()).used > 2 * BLOCK
        finally:
            await catalog.store.close()
        again = open_catalog(before_owners)
        try:
            assert (await People(again).ann.get("notes", "1.2.0")).owner == "ann"
        finally:
            await again.store.close()

    run(main())


@pytest.mark.attack("tenants")
def test_a_refused_push_leaves_nothing_on_disk(hub: Callable[..., Any]) -> None:
    """Otherwise a user could fill the hub's disk past any quota with pushes to another user's name."""

    async def main() -> None:
        async with hub(quota=100_000) as people:
            await push(people.ann, "notes", "1.0.0")
            await push(people.bob, "own", "1.0.0")
            tries = [
                ("notes", "1.0.1", Forbidden, 0),
                ("own", "1.0.0", Conflict, 0),
                ("own", "2.0.0", QuotaExceeded, 9),
            ]
            for name, version, refusal, size in tries:
                about = "x" * (50_000 + 10_000 * size)
                bundle, _ = bundle_of(name, version, {"src/env.py": b"print()"}, about=about)
                with pytest.raises(refusal):
                    await people.bob.push(request_of(bundle))
                assert await people.catalog.blobs.sizes([bundle.digest()]) == [None]

    run(main())
