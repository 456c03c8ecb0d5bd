"""Behaviour of a hub, used directly and over HTTP, on SQLite and on Redis."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from aenv.client.hub_client import HubClient
from aenv.errors import Conflict, Forbidden, InvalidArguments, InvalidBundle, NotFound, TooLarge
from aenv.http.server import HttpServer
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.hub.web.app import HubApp
from aenv.schema.bundle import BLOB_LIMIT, digest_of, parse
from aenv.schema.envhub import EnvPage, Hub, PushRequest
from tests.conftest import run
from tests.hub.parts import bundle_of, push, request_of

Use = Callable[[Hub], Awaitable[None]]


@pytest.fixture(params=["direct", "http"])
def with_hub(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> Callable[[Use], None]:
    """Return a runner that gives a coroutine function a hub: in process, or through a server."""
    over_http = request.param == "http"

    async def main(use: Use) -> None:
        async with AsyncExitStack() as stack:
            catalog = open_catalog(HubLocation(store_url, str(tmp_path / "blobs")))
            hub: Hub = LocalHub(catalog)
            stack.push_async_callback(hub.close)
            if over_http:
                server = HttpServer(HubApp(catalog, auth=False), max_body=1 << 25)
                stack.push_async_callback(server.close, 1.0)
                listener = await server.listen(host="127.0.0.1")
                hub = HubClient(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
                stack.push_async_callback(hub.close)
            await use(hub)

    return lambda use: run(main(use))


def names(page: EnvPage) -> list[str]:
    return [item.name for item in page.items if not item.builtin]


def test_a_pushed_version_is_returned_with_all_its_details(with_hub: Callable[[Use], None]) -> None:
    async def use(hub: Hub) -> None:
        bundle, blobs = bundle_of("tau", "1.0.0", {"src/a.py": b"x = 1", "data": b"\0" * 100}, deployConfig={"cpu": 2})
        assert await hub.missing(list(blobs)) == list(blobs)
        for digest, data in blobs.items():
            await hub.put_blob(digest, data)
        assert await hub.missing(list(blobs)) == []
        request = request_of(
            bundle,
            description="Talk to a customer",
            readme="# Tau",
            tags=["chat", "benchmark"],
            tools=["look_up_order"],
            author="Ada",
            dependencies=["other@^1.2"],
            artifacts=[{"type": "image", "content": "r/tau:1"}],
            lock="httpx==1.0\n",
        )
        done = await hub.push(request)
        assert (done.outcome, done.version.digest) == ("created", bundle.digest())
        found = await hub.get("tau", "1.0.0")
        assert found.config == bundle.config
        assert (found.description, found.readme, found.tags) == ("Talk to a customer", "# Tau", ["chat", "benchmark"])
        assert (found.author, found.dependencies, found.lock) == ("Ada", ["other@^1.2"], "httpx==1.0\n")
        assert found.artifacts == [{"type": "image", "content": "r/tau:1"}]
        assert found.schemas == request.schemas
        assert (found.tools, found.size, found.files, found.status) == (["look_up_order"], 105, 3, "Ready")
        assert found.created_at == found.updated_at != ""
        assert parse(await hub.get_blob(found.digest)) == bundle
        assert await hub.get_blob(next(iter(blobs))) == blobs[next(iter(blobs))]

    with_hub(use)


def test_pushing_the_same_content_again_changes_nothing_and_other_content_conflicts(
    with_hub: Callable[[Use], None],
) -> None:
    async def use(hub: Hub) -> None:
        first = await push(hub, "a", "1.0.0", "one")
        again = await push(hub, "a", "1.0.0", "one", description="ignored")
        assert (again.outcome, again.version) == ("unchanged", first.version)
        with pytest.raises(Conflict) as caught:
            await push(hub, "a", "1.0.0", "two")
        assert caught.value.details["differs"] == ["changed src/env.py"]
        assert "--force" in caught.value.details["hint"]
        assert (await hub.get("a")).digest == first.version.digest
        forced = await push(hub, "a", "1.0.0", "two", force=True)
        assert forced.outcome == "replaced"
        assert (await hub.get("a")).digest == forced.version.digest != first.version.digest
        await hub.release("a", "1.0.0")
        assert (await push(hub, "a", "1.0.0", "two", force=True)).outcome == "unchanged"
        with pytest.raises(Conflict, match="released") as caught:
            await push(hub, "a", "1.0.0", "three", force=True)
        assert caught.value.details["differs"]

    with_hub(use)


def test_a_name_resolves_to_the_newest_release_and_a_range_to_its_newest_match(
    with_hub: Callable[[Use], None],
) -> None:
    async def use(hub: Hub) -> None:
        digests = {}
        for version in ("1.0.0", "1.2.0", "1.10.0", "1.2.5-rc1", "2.0.0", "2.1.0-beta", "0.2.1", "0.3.0"):
            digests[version] = (await push(hub, "a", version, version)).version.digest

        async def got(ref: str = "") -> str:
            return (await hub.get("a", ref)).version

        assert await got() == "2.0.0"  # nothing is released yet, and 2.1.0 is only a prerelease
        for version in ("1.0.0", "1.2.0", "1.10.0"):
            await hub.release("a", version)
        assert await got() == "1.10.0"
        assert (await hub.list(name="a")).items[0].version == "1.10.0"
        assert await got("1") == await got("^1.0") == await got("latest") == "1.10.0"
        assert await got("1.2") == await got("~1.2") == await got("~1.2.0") == "1.2.0"
        assert await got("2") == "2.0.0"
        assert await got("^0.2") == "0.2.1"
        assert await got("1.2.5-rc1") == "1.2.5-rc1"
        assert await got(digests["1.0.0"]) == "1.0.0"
        for nothing in ("3", "^1.11", "1.2.1", "sha256:" + "0" * 64):
            with pytest.raises(NotFound, match=r"2\.1\.0-beta"):
                await got(nothing)
        with pytest.raises(InvalidArguments, match="invalid version 'newest please'"):
            await got("newest please")
        with pytest.raises(NotFound, match="no environment b"):
            await hub.get("b")
        page = await hub.versions("a", limit=3)
        rest = await hub.versions("a", limit=100, after=page.next)
        listed = [item.version for item in (*page.items, *rest.items)]
        assert listed == ["2.1.0-beta", "2.0.0", "1.10.0", "1.2.5-rc1", "1.2.0", "1.0.0", "0.3.0", "0.2.1"]
        assert {item.versions for item in page.items} == {8}

    with_hub(use)


def test_a_yanked_version_is_found_only_by_its_exact_number(with_hub: Callable[[Use], None]) -> None:
    async def use(hub: Hub) -> None:
        for version in ("1.0.0", "1.1.0"):
            await push(hub, "a", version, version)
            await hub.release("a", version)
        yanked = await hub.yank("a", "1.1.0", "broken reward")
        assert yanked.yanked == "broken reward"
        assert (await hub.get("a")).version == (await hub.get("a", "^1")).version == "1.0.0"
        exact = await hub.get("a", "1.1.0")
        assert exact.yanked == "broken reward"
        assert (await hub.get("a", exact.digest)).version == "1.1.0"
        await hub.yank("a", "1.0.0", "also broken")
        assert "a" not in names(await hub.list())
        with pytest.raises(NotFound, match="yanked"):
            await hub.get("a")
        await hub.yank("a", "1.1.0", None)
        assert (await hub.get("a")).version == "1.1.0"
        assert names(await hub.list()) == ["a"]

    with_hub(use)


def test_a_deprecated_version_still_resolves_and_carries_its_reason(with_hub: Callable[[Use], None]) -> None:
    async def use(hub: Hub) -> None:
        await push(hub, "a", "1.0.0")
        await hub.release("a", "1.0.0")
        await hub.deprecate("a", "1.0.0", "use b")
        assert (await hub.get("a", "1")).deprecated == "use b"
        assert (await hub.list(name="a")).items[0].deprecated == "use b"
        await hub.deprecate("a", "1.0.0", None)
        assert (await hub.get("a")).deprecated is None
        with pytest.raises(NotFound):
            await hub.deprecate("a", "9", "no such version")

    with_hub(use)


def test_the_number_of_a_deleted_release_cannot_be_reused_for_other_content(with_hub: Callable[[Use], None]) -> None:
    async def use(hub: Hub) -> None:
        await push(hub, "a", "1.0.0", "one")
        await push(hub, "a", "2.0.0", "two")
        await hub.release("a", "2.0.0")
        await hub.delete("a", "2.0.0", "leaks a secret")
        assert (await hub.get("a")).version == "1.0.0"
        assert (await hub.list(name="a")).items[0].versions == 1
        with pytest.raises(Conflict, match="leaks a secret"):
            await push(hub, "a", "2.0.0", "three", force=True)
        assert (await push(hub, "a", "2.0.0", "two")).outcome == "created"
        await hub.delete("a", "1.0.0", "was a mistake")
        assert (await push(hub, "a", "1.0.0", "other")).outcome == "created", "only released numbers are blocked"
        with pytest.raises(InvalidArguments):
            await hub.delete("a", "1.0.0", "")
        for version in ("1.0.0", "2.0.0"):
            await hub.delete("a", version, "all of it")
        assert "a" not in names(await hub.list())
        with pytest.raises(NotFound):
            await hub.get("a")
        with pytest.raises(NotFound):
            await hub.delete("a", "1.0.0", "again")

    with_hub(use)


def test_lists_are_sorted_by_name_paged_and_filtered(with_hub: Callable[[Use], None]) -> None:
    async def use(hub: Hub) -> None:
        for number in range(7):
            tags = ["even" if number % 2 == 0 else "odd", *(["Third"] if number % 3 == 0 else [])]
            await push(hub, f"env-{number}", "1.0.0", tags=tags)
        await push(hub, "other", "1.0.0")
        everything = ["env-0", "env-1", "env-2", "env-3", "env-4", "env-5", "env-6", "other"]
        assert names(await hub.list()) == everything
        assert names(await hub.list(name="env-")) == everything[:-1]
        assert names(await hub.list(name="env-", offset=2, limit=3)) == everything[2:5]
        assert names(await hub.list(tags=["even"])) == ["env-0", "env-2", "env-4", "env-6"]
        assert names(await hub.list(tags=["even", "third"])) == ["env-0", "env-6"]
        assert names(await hub.list(tags=["even"], offset=1, limit=2)) == ["env-2", "env-4"]
        assert names(await hub.list(tags=["even"], offset=9)) == []
        assert names(await hub.list(tags=["none"])) == names(await hub.list(name="x")) == []
        seen: list[str] = []
        after = None
        while True:
            page = await hub.list(name="env", limit=3, after=after)
            seen += names(page)
            after = page.next
            if after is None:
                break
        assert seen == everything[:-1]
        for wrong in ({"limit": 0}, {"limit": 1001}, {"offset": -1}, {"after": "what?"}):
            with pytest.raises(InvalidArguments):
                await hub.list(**wrong)  # type: ignore[arg-type]

    with_hub(use)


def test_search_matches_words_in_every_field_and_ranks_names_first(with_hub: Callable[[Use], None]) -> None:
    async def use(hub: Hub) -> None:
        await push(hub, "climate-demo", "1.0.0", description="Ask for the forecast", tools=["getForecast"])
        await push(hub, "zoo", "1.0.0", description="Animals and the climate", tags=["kids"])
        await push(hub, "airline", "1.0.0", tools=["book_flights", "climate_at"], author="Grace Hopper")
        await push(hub, "chinese", "1.0.0", description="天气环境")

        async def found(query: str, **more: Any) -> list[str]:
            return names(await hub.search(query, **more))

        assert await found("climate") == ["climate-demo", "airline", "zoo"]
        assert await found("Clim") == ["climate-demo"]
        assert await found("climate kid") == ["zoo"]
        assert await found("get forecast") == ["climate-demo"]
        assert await found("flight") == await found("FLIGHTS") == await found("hopper") == ["airline"]
        assert await found("天气") == ["chinese"]
        assert await found("climate submarine") == await found("???") == await found("") == []
        assert await found("greet visitor") == []
        page = await hub.search("climate", limit=1)
        assert names(page) == ["climate-demo"]
        rest: list[str] = []
        while page.next:
            page = await hub.search("climate", limit=1, after=page.next)
            rest += names(page)
        assert rest == ["airline", "zoo"]
        await push(hub, "zoo", "2.0.0", description="No more of that")
        assert await found("climate") == ["climate-demo", "airline"], (
            "only the current version of an environment is searched"
        )

    with_hub(use)


def test_one_of_many_concurrent_pushes_of_a_version_wins_and_the_others_conflict(
    with_hub: Callable[[Use], None],
) -> None:
    async def use(hub: Hub) -> None:
        results = await asyncio.gather(
            *(push(hub, "race", "1.0.0", f"pusher {number}") for number in range(8)), return_exceptions=True
        )
        won = [result for result in results if not isinstance(result, BaseException)]
        lost = [result for result in results if isinstance(result, Conflict)]
        assert (len(won), len(lost)) == (1, 7)
        assert all(error.details["differs"] for error in lost)
        found = await hub.get("race")
        assert found.digest == won[0].version.digest
        assert found.versions == 1
        others = await asyncio.gather(*(push(hub, "race", f"1.0.{number}") for number in range(1, 9)))
        assert {other.outcome for other in others} == {"created"}
        assert (await hub.get("race")).version == "1.0.8"
        assert (await hub.get("race")).versions == 9

    with_hub(use)


@functools.cache
def bad_bundles() -> dict[str, dict[str, Any]]:
    good = bundle_of("bad", "1.0.0", {"a.py": b"x"})[0].model_dump()
    digest = good["files"][0]["blobs"][0]

    def file(path: str, **more: Any) -> dict[str, Any]:
        return {"path": path, "mode": 0o644, "size": 1, "blobs": [digest], **more}

    return {
        "parent folder": {**good, "files": [file("../a.py")]},
        "parent folder inside a path": {**good, "files": [file("src/../../a.py")]},
        "absolute": {**good, "files": [file("/etc/passwd")]},
        "link to outside": {**good, "links": [{"path": "l", "target": "../outside"}]},
        "link absolute": {**good, "links": [{"path": "l", "target": "/etc"}]},
        "through a link": {**good, "files": [file("l/x")], "links": [{"path": "l", "target": "src"}]},
        "duplicate path": {**good, "files": [file("a.py"), file("a.py")]},
        "differs in case": {**good, "files": [file("A.py"), file("a.py")]},
        "device": {**good, "files": [file("dev", mode=0o020644)]},
        "setuid": {**good, "files": [file("su", mode=0o4755)]},
        "wrong size": {**good, "files": [file("a.py", size=1000)]},
        "bomb": {**good, "files": [file(f"f{n:05d}", size=BLOB_LIMIT) for n in range(5000)]},
        "million": {**good, "files": [file(f"{n}") for n in range(60_000)]},
        "other name in the config": {**good, "config": {"name": "good", "version": "1.0.0"}},
        "unknown field": {**good, "run": "rm -rf /"},
        "not a manifest": {"hello": "world"},
    }


@pytest.mark.long
@pytest.mark.parametrize("what", bad_bundles())
def test_a_malicious_bundle_is_refused_and_leaves_nothing_behind(
    what: str, with_hub: Callable[[Use], None], tmp_path: Path
) -> None:
    async def use(hub: Hub) -> None:
        data = b"x"
        await hub.put_blob(digest_of(data), data)
        await hub.list()
        before = sorted(path for path in (tmp_path / "blobs").rglob("*") if path.is_file())
        with pytest.raises(InvalidBundle) as caught:
            await hub.push(PushRequest(bundle=bad_bundles()[what]), force=True)
        assert len(caught.value.message) < 400
        with pytest.raises(NotFound):
            await hub.get("bad")
        assert sorted(path for path in (tmp_path / "blobs").rglob("*") if path.is_file()) == before

    with_hub(use)


def test_a_version_is_published_only_when_all_its_blobs_are_uploaded(with_hub: Callable[[Use], None]) -> None:
    async def use(hub: Hub) -> None:
        bundle, blobs = bundle_of("a", "1.0.0", {"one": b"1", "two": b"2"})
        first, second = blobs
        await hub.put_blob(first, blobs[first])
        with pytest.raises(InvalidBundle, match="1 of the bundle's 2 blobs") as caught:
            await hub.push(request_of(bundle))
        assert caught.value.details["missing"] == [second]
        with pytest.raises(InvalidBundle, match="send the file again"):
            await hub.put_blob(second, b"something else")
        with pytest.raises(InvalidArguments, match="invalid digest"):
            await hub.put_blob("sha256:..%2Fetc", b"")
        with pytest.raises(TooLarge):
            await hub.put_blob(second, bytes(BLOB_LIMIT + 1))
        with pytest.raises(NotFound):
            await hub.get_blob(second)

    with_hub(use)


def test_built_in_environments_are_present_and_cannot_be_changed(
    with_hub: Callable[[Use], None],
) -> None:
    async def use(hub: Hub) -> None:
        page = await hub.list()
        assert "hello-env" in [item.name for item in page.items]
        found = await hub.get("hello-env")
        assert (found.status, found.builtin, found.public) == ("Released", True, True)
        assert found.tools
        assert found.readme
        bundle = parse(await hub.get_blob(found.digest))
        for file in bundle.files:
            assert len(b"".join([await hub.get_blob(digest) for digest in file.blobs])) == file.size
        changes = (
            push(hub, "hello-env", "9.0.0"),
            push(hub, "hello-env", found.version, force=True),
            hub.delete("hello-env", found.version, "mine"),
            hub.yank("hello-env", found.version, "mine"),
            hub.deprecate("hello-env", found.version, "mine"),
            hub.set_public("hello-env", False),
        )
        for change in changes:
            with pytest.raises(Forbidden, match="built-in environment"):
                await change
        assert (await hub.get("hello-env")).digest == found.digest

    with_hub(use)
