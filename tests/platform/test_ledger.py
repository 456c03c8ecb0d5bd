"""The ledger on SQLite and on Redis, with servers that start, stop and are killed."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.errors import Unavailable
from aenv.platform.instances.ledger import (
    DEAD_AFTER_SECONDS,
    ENDED_TTL_SECONDS,
    INSTANCE,
    SERVER,
    Ledger,
    LedgerEntry,
    ServerEntry,
)
from aenv.schema.instances import EnvInstance, EnvStatus
from aenv.storage.base import Delete, Put, Store
from aenv.storage.open_url import open_store
from tests.conftest import run
from tests.storage.valkey import Valkey, servers, started

numbers = itertools.count()


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with started(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/platform.db"
    server: Valkey = request.getfixturevalue("valkey")
    return server.url(prefix=f"ledger{next(numbers)}:")


def instance(name: str, status: EnvStatus = EnvStatus.RUNNING) -> EnvInstance:
    return EnvInstance(id=name, status=status, ip=f"{name}.secret", token="secret")


async def put(store: Store, name: str, server: str) -> None:
    entry = LedgerEntry(instance=instance(name), account="ann", server=server)
    await store.commit(Put(INSTANCE, name, entry.model_dump_json().encode(), (("alive", name),)))


def test_instances_of_dead_servers_end_and_those_of_running_ones_do_not(url: str) -> None:
    async def main() -> None:
        store = open_store(url)
        own = ServerEntry.own()
        elsewhere = own.model_copy(update={"id": "elsewhere", "host": "elsewhere"})
        killed = own.model_copy(update={"id": "killed", "started": "0-0"})
        for server in (elsewhere, killed):
            await store.commit(Put(SERVER, server.id, server.model_dump_json().encode()))
        for name, server_id in (("a", "elsewhere"), ("b", "killed"), ("c", "forgotten")):
            await put(store, name, server_id)
        ledger = Ledger(store)
        assert await ledger.open() == 2
        found = {name: await ledger.get(name) for name in ("a", "b", "c", "d")}
        statuses = {name: entry and entry.instance.status for name, entry in found.items()}
        assert statuses == {"a": "Running", "b": "Terminated", "c": "Terminated", "d": None}
        assert await ledger.end_lost() == 0
        await ledger.close()
        assert await store.get(SERVER, ledger.server.id) is None
        await store.close()

    run(main())


def test_entries_hold_no_secrets_and_expire_after_the_end(url: str) -> None:
    async def main() -> None:
        store = open_store(url)
        now = 2_000_000_000.0
        ledger = Ledger(store, lambda: now)
        await ledger.open()
        await ledger.write(instance("a"), "ann")
        written = await store.get(INSTANCE, "a")
        assert written is not None
        assert b"secret" not in written.value
        ledger.write_soon(instance("a", EnvStatus.TERMINATED), "ann")
        ledger.delete_soon("b")
        await ledger.close()
        puts = [p async for p in store.dump() if p.space == INSTANCE]
        assert [(p.key, p.expires, p.entries) for p in puts] == [("a", now + ENDED_TTL_SECONDS, ())]
        await store.close()

    run(main())


def test_a_write_fails_while_the_store_is_down_and_a_deferred_write_is_retried(tmp_path: Path) -> None:
    server = Valkey(Path(servers()[0]), tmp_path)
    server.start()

    async def main() -> None:
        store = open_store(server.url(prefix="x:"))
        ledger = Ledger(store)
        await ledger.open()
        await ledger.write(instance("a"), "ann")
        server.kill()
        with pytest.raises(Unavailable):
            await ledger.write(instance("b"), "ann")
        ledger.write_soon(instance("a", EnvStatus.FAILED), "ann")
        server.start()
        await ledger.write(instance("c"), "ann")
        found = await ledger.get("a")
        assert found is not None
        assert found.instance.status == "Failed"
        assert await ledger.get("b") is None
        await ledger.close()
        await store.commit(Delete(INSTANCE, "a"))
        await store.close()

    try:
        run(main())
    finally:
        server.stop()


def test_a_remote_server_is_dead_after_a_long_silence_and_not_when_a_clock_is_set(url: str) -> None:
    async def main() -> None:
        store = open_store(url)
        there = ServerEntry.own().model_copy(update={"id": "there", "host": "elsewhere", "patience": 60.0})
        heartbeat = Put(SERVER, there.id, there.model_dump_json().encode())
        await store.commit(heartbeat)
        await put(store, "a", "there")
        now, wall = 0.0, 2_000_000_000.0
        ledger = Ledger(store, lambda: wall, monotonic=lambda: now)
        await ledger.open()
        wall += 86400.0  # the wall clock is set
        assert await ledger.end_lost() == 0
        now = DEAD_AFTER_SECONDS + 59
        assert await ledger.end_lost() == 0
        await store.commit(heartbeat)
        now += DEAD_AFTER_SECONDS + 59
        assert await ledger.end_lost() == 0
        now += 2
        assert await ledger.end_lost() == 0  # its heartbeat was first seen a moment ago
        now += DEAD_AFTER_SECONDS + 59
        assert await ledger.end_lost() == 1
        found = await ledger.get("a")
        assert found is not None
        assert found.instance.status == "Terminated"
        await ledger.close()
        await store.close()

    run(main())


def test_a_killed_servers_instances_are_left_to_the_next_while_the_fd_holder_runs(url: str) -> None:
    async def main(fd_holder: int) -> None:
        store = open_store(url)
        before = Ledger(store, server=ServerEntry.own("home").model_copy(update={"started": "0-0"}))
        before.set_fd_holder(fd_holder)
        await before.open()
        for name in ("a", "b", "c"):
            await before.write(instance(name, EnvStatus.CREATING if name == "c" else EnvStatus.RUNNING), "ann")
        await before.close(hand_over=True)
        other = Ledger(store)
        assert await other.open() == 0
        after = Ledger(store, server=ServerEntry.own("home"))
        assert await after.open() == 0
        assert await after.end_missing({"a"}) == 2
        found = {name: await after.get(name) for name in ("a", "b", "c")}
        assert {name: entry and str(entry.instance.status) for name, entry in found.items()} == {
            "a": "Running", "b": "Terminated", "c": "Failed"
        }  # fmt: skip
        await other.close()
        await after.close()
        await store.close()

    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        try:
            run(main(process.pid))
        finally:
            process.kill()
