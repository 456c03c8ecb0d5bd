"""Crash tests: the hub, or the Redis that holds its records, is killed during a push of 200 MB."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aenv.client.hub_client import HubClient
from aenv.errors import Unavailable
from aenv.project.bundles.packing import Packed, pack
from aenv.project.publish import AT_ONCE, missing, publish, request_for, send
from aenv.schema.bundle import parse
from aenv.schema.envhub import Schemas
from tests.conftest import run
from tests.hub.parts import push, serving
from tests.storage.valkey import Valkey, started

MEGABYTES = 200


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packed]:
    folder = tmp_path_factory.mktemp("big") / "big"
    (folder / "src").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"name": "big", "version": "2.0.0"}))
    (folder / "src" / "env.py").write_text("x = 1\n")
    data = folder / "data.bin"
    with data.open("wb") as file:
        for _ in range(MEGABYTES):
            file.write(os.urandom(1 << 20))
    yield pack(folder)
    data.unlink()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Valkey]:
    with started(tmp_path) as server:
        yield server


class Sent:
    """Progress callback that counts sent bytes and calls ``then`` when half of the bundle is sent."""

    def __init__(self, project: Packed) -> None:
        self.total = 0
        self.half = project.bundle.size // 2
        self.then = lambda: None

    def __call__(self, size: int) -> None:
        before, self.total = self.total, self.total + size
        if before < self.half <= self.total:
            self.then()


@pytest.mark.long
@pytest.mark.parametrize("kept_in", ["sqlite", "redis"])
def test_a_hub_killed_during_a_push_restarts_consistent_and_the_push_resumes(
    kept_in: str, project: Packed, tmp_path: Path, own_valkey: Valkey
) -> None:
    store = f"sqlite:{tmp_path}/hub.db" if kept_in == "sqlite" else own_valkey.url()
    blobs = tmp_path / "blobs"
    request = request_for(project, Schemas())
    with ExitStack() as first:
        hub = first.enter_context(serving(store, blobs, tmp_path))
        port = int(hub.url.rpartition(":")[2])
        sent = Sent(project)
        sent.then = lambda: os.kill(hub.process.pid, signal.SIGKILL)

        async def cut_off() -> None:
            client = HubClient(hub.url, retries=0)
            await push(client, "big", "1.0.0")
            with pytest.raises(Unavailable):
                await publish(client, project, request, force=False, progress=sent)
            await client.close()

        run(cut_off())
        hub.process.wait()
        hub.process.returncode = 0  # the test killed it on purpose
        assert sent.total < project.bundle.size

    with serving(store, blobs, tmp_path, port=port) as hub:

        async def resume() -> None:
            client = HubClient(hub.url)
            assert [item.version for item in (await client.versions("big")).items] == ["1.0.0"], (
                "the interrupted version must not exist"
            )
            left = await missing(client, project)
            assert 0 < sum(left.values()) <= project.bundle.size - sent.half, "blobs sent before the crash are kept"
            rest = Sent(project)
            done = await publish(client, project, request, force=False, progress=rest)
            assert (done.outcome, rest.total) == ("created", sum(left.values()))
            found = await client.get("big")
            assert parse(await client.get_blob(found.digest)) == project.bundle
            assert await missing(client, project) == {}
            await client.close()

        run(resume())
    assert len(list((blobs / "parts").iterdir())) <= AT_ONCE, "only parts that were being written at the crash"


def test_a_redis_killed_during_a_push_restarts_consistent_and_the_push_resumes(
    project: Packed, tmp_path: Path, own_valkey: Valkey
) -> None:
    with serving(own_valkey.url(), tmp_path / "blobs", tmp_path) as hub:

        async def use() -> None:
            client = HubClient(hub.url, retries=0)
            await push(client, "big", "1.0.0")
            await send(client, project, await missing(client, project), lambda size: None)
            own_valkey.kill()
            with pytest.raises(Unavailable) as caught:
                await client.push(request_for(project, Schemas()))
            assert caught.value.retryable
            assert "open-sesame" not in str(caught.value)
            own_valkey.start()
            assert [item.version for item in (await client.versions("big")).items] == ["1.0.0"]
            assert await missing(client, project) == {}
            done = await client.push(request_for(project, Schemas()))
            assert done.outcome == "created"
            own_valkey.kill()
            own_valkey.start()
            assert (await client.get("big")).version == "2.0.0", "an acknowledged push is durable"
            await client.close()

        run(use())


def test_a_push_survives_a_quick_restart_of_the_hub(project: Packed, tmp_path: Path) -> None:
    store, blobs = f"sqlite:{tmp_path}/hub.db", tmp_path / "blobs"
    with ExitStack() as stack:
        hub = stack.enter_context(serving(store, blobs, tmp_path))
        port = int(hub.url.rpartition(":")[2])
        sent = Sent(project)

        def restart() -> None:
            os.kill(hub.process.pid, signal.SIGKILL)
            hub.process.wait()
            hub.process.returncode = 0
            stack.enter_context(serving(store, blobs, tmp_path, port=port))

        sent.then = restart

        async def use() -> None:
            client = HubClient(hub.url)
            done = await publish(client, project, request_for(project, Schemas()), force=False, progress=sent)
            assert done.outcome == "created"
            await client.close()

        run(use())
