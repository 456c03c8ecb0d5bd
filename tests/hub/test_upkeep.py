"""Maintenance of a hub: migration, import, backup, restore and garbage collection."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from aenv.errors import InvalidBundle
from aenv.hub.access.hub_tokens import HubTokens
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.hub.upkeep import collect
from aenv.schema.bundle import parse
from tests.conftest import run
from tests.hub.parts import bundle_of, push, request_of
from tests.storage.valkey import Valkey


def aenv(*words: str, code: int = 0) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "aenv.cli", "hub", *words, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def use(location: HubLocation, work: Callable[[LocalHub], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        hub = LocalHub(open_catalog(location))
        try:
            return await work(hub)
        finally:
            await hub.close()

    return run(main())


async def fill(hub: LocalHub) -> str:
    for number in range(5):
        await push(hub, f"env-{number}", "1.0.0", f"content {number}", tags=["a"], description=f"number {number}")
    await hub.release("env-1", "1.0.0")
    await push(hub, "env-1", "2.0.0-rc1")
    return (await HubTokens(hub.catalog.store).create(user="Ada", scope="push"))[1]


async def check(hub: LocalHub, token: str) -> None:
    assert [item.name for item in (await hub.list(name="env-")).items] == [f"env-{number}" for number in range(5)]
    assert (await hub.get("env-1")).version == "1.0.0"
    assert (await hub.versions("env-1")).items[0].version == "2.0.0-rc1"
    assert [item.name for item in (await hub.search("number 3")).items] == ["env-3"]
    assert (await HubTokens(hub.catalog.store).authenticate(token)).name == "Ada"
    for number in range(5):
        bundle = parse(await hub.get_blob((await hub.get(f"env-{number}")).digest))
        assert [await hub.get_blob(digest) for digest in bundle.blobs()] == [f"content {number}".encode()]
    await push(hub, "later", "1.0.0")


def test_a_hub_migrates_from_sqlite_to_redis_and_back(valkey: Valkey, tmp_path: Path) -> None:
    first = HubLocation.of(f"sqlite:{tmp_path}/one/hub.db")
    token = use(first, fill)
    middle = HubLocation(valkey.url(prefix="moved:"), str(tmp_path / "two" / "blobs"))
    moved = aenv("migrate", first.store, middle.store, "--to-blobs", middle.blobs)
    assert moved["records"] > 10
    assert moved["blobs"] >= 12
    assert aenv("migrate", first.store, middle.store, "--to-blobs", middle.blobs)["blobs"] == 0
    use(middle, lambda hub: check(hub, token))
    last = HubLocation.of(str(tmp_path / "three" / "hub.db"))
    aenv("migrate", middle.store, last.store, "--from-blobs", middle.blobs)
    use(last, lambda hub: check(hub, token))
    assert "the same store" in aenv("migrate", last.store, last.store, code=2)


def test_the_versions_of_a_legacy_hub_are_imported_from_its_redis(valkey: Valkey, tmp_path: Path) -> None:
    def env(name: str, version: str, status: int, **more: Any) -> dict[str, Any]:
        return {"id": "", "name": name, "version": version, "status": status, "code_url": "oss://x", **more}

    documents = {
        "old-1.0.0": env("old", "1.0.0", 7, tags=["a"], deploy_config={"cpu": "2"}, artifacts=[{"type": "image"}]),
        "old-1.1.0": env("old", "1.1.0", 6, description="newer"),
        "Bad_Name-1": env("Bad_Name", "1", 6),
    }
    client = redis.Redis.from_url(valkey.url(database=3).partition("?")[0])
    for key, document in documents.items():
        client.sadd("env:index", key)
        client.set(f"env:data:{key}", json.dumps({"env": document, "labels": {}, "resourceVersion": 1}))
    client.close()
    location = HubLocation.of(str(tmp_path / "hub.db"))
    result = aenv("migrate", "--older", valkey.url(database=3), location.store)
    assert result == {"records": 2, "there": 0, "refused": 1}
    assert aenv("migrate", "--older", valkey.url(database=3), location.store)["there"] == 2

    async def check_import(hub: LocalHub) -> None:
        found = await hub.get("old")
        assert (found.version, found.status, found.tags) == ("1.0.0", "Released", ["a"])
        assert (found.config["deployConfig"], found.code_url) == ({"cpu": "2"}, "oss://x")
        assert (await hub.get("old", "1.1.0")).description == "newer"

    use(location, check_import)


def test_a_restored_backup_has_every_record_and_blob(store_url: str, tmp_path: Path) -> None:
    location = HubLocation(store_url, str(tmp_path / "blobs"))
    token = use(location, fill)
    file = tmp_path / "backup.tar"
    assert aenv("backup", str(file), "--store", location.store, "--blobs", location.blobs)["missing"] == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.glob(".backup*")] == []
    other = tmp_path / "other" / "hub.db"
    aenv("restore", str(file), "--store", str(other))
    use(HubLocation.of(str(other)), lambda hub: check(hub, token))
    assert "not empty" in aenv("restore", str(file), "--store", str(other), code=2)
    aenv("restore", str(file), "--store", str(other), "--force")


def test_a_backup_that_cannot_be_written_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "backup.tar"
    said = aenv("backup", str(file), "--store", str(tmp_path / "hub.db"), code=2)
    assert f"{file} cannot be written: No such file or directory" in said


def test_restoring_a_file_that_is_not_a_backup_fails_and_changes_nothing(tmp_path: Path) -> None:
    location = HubLocation.of(str(tmp_path / "hub" / "hub.db"))
    file = tmp_path / "notes.tar"
    file.write_text("hello")
    assert "not a hub backup" in aenv("restore", str(file), "--store", location.store, code=3)
    page = use(location, lambda hub: hub.list())
    assert [item.name for item in page.items if not item.builtin] == []


def test_garbage_collection_removes_unreferenced_blobs_and_spares_pushes_in_progress(
    store_url: str, tmp_path: Path
) -> None:
    location = HubLocation(store_url, str(tmp_path / "blobs"))

    def make_old() -> None:
        long_ago = time.time() - 48 * 3600
        for path in (tmp_path / "blobs").rglob("*"):
            if path.is_file():
                os.utime(path, (long_ago, long_ago))

    async def work(hub: LocalHub) -> None:
        await push(hub, "kept", "1.0.0", "kept")
        await push(hub, "gone", "1.0.0", "gone")
        await hub.delete("gone", "1.0.0", "not needed")
        store, blobs = hub.catalog.store, hub.catalog.blobs
        first = await collect(store, blobs)
        assert (first.removed, first.young) == (0, 2), "within the grace period"
        make_old()
        bundle, wanted = bundle_of("coming", "1.0.0", {"src/env.py": b"gone"})
        assert await hub.missing(list(wanted)) == [], "another push uploaded the same file"
        done = await collect(store, blobs)
        assert (done.removed, done.young) == (1, 1), "the blob of the push in progress is kept"
        await hub.push(request_of(bundle))
        make_old()
        assert (await collect(store, blobs, dry_run=True)).removed == 0
        await hub.delete("coming", "1.0.0", "not needed")
        make_old()
        assert (await collect(store, blobs, dry_run=True)).removed == 2
        assert (await collect(store, blobs)).removed == 2
        with pytest.raises(InvalidBundle):
            await hub.push(request_of(bundle))
        found = await hub.get("kept")
        assert all([await hub.get_blob(digest) for digest in parse(await hub.get_blob(found.digest)).blobs()])

    use(location, work)
    result = aenv("gc", "--store", location.store, "--blobs", location.blobs, "--grace", "0s")
    assert result["removed"] == 0
