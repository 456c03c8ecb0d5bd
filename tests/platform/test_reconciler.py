"""Reconciliation of services: unhealthy and crashing replicas, lost servers, orphans and storages."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aenv.client.platform_client import ApiClient
from aenv.engines.native.engine import NativeEngine
from aenv.errors import InvalidArguments, NotFound
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.platform.access.platform_tokens import OWNER, Caller
from aenv.platform.instances import handover
from aenv.platform.instances.admission import Capacity
from aenv.platform.instances.instance_record import Replica
from aenv.platform.instances.ledger import Ledger
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.instances.requests.env_sources import Sources
from aenv.platform.services import reconciler
from aenv.platform.services.services import Services
from aenv.platform.services.storages import Storages
from aenv.schema.instances import EnvInstanceCreateRequest, EnvServiceCreateRequest, EnvServiceUpdateRequest, HubAccess
from aenv.storage.open_url import open_store
from tests.conftest import fetch, run
from tests.hub.parts import push
from tests.isolation.test_trees import nest
from tests.platform.conftest import _remove
from tests.platform.parts import serving

CODE = """
import os
from aenv import register_function, register_health

@register_health
def health() -> dict[str, str]:
    return {"status": os.environ.get("HEALTH", "healthy"), "message": "as it was told"}

@register_function
def die() -> None:
    os._exit(3)
"""


@pytest.fixture
def data(sandboxes: None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))

    async def publish() -> None:
        hub = LocalHub(open_catalog(HubLocation.of(data=folder)))
        try:
            await push(hub, "fragile", "1.0.0", CODE, public=True)
        finally:
            await hub.close()

    asyncio.run(publish())
    yield folder
    _remove(folder)


@asynccontextmanager
async def running(data: Path, capacity: Capacity | None = None) -> AsyncIterator[tuple[Services, Instances]]:
    """Run services in this process."""
    store = open_store(str(data / "platform.db"))
    ledger = Ledger(store)
    await ledger.open()
    hub = HubAccess(data=str(data), cache=str(data / "cache"))
    sources = Sources(lambda access: LocalHub(open_catalog(HubLocation.of(data=data))), only_hub=hub)
    engine = NativeEngine(data / "run", pool=0)
    instances = Instances(engine, sources, direct=False, ledger=ledger, capacity=capacity)
    services = Services(instances, sources, ledger, data / "storage", grace=1.0)
    await services.open()
    try:
        yield services, instances
    finally:
        await services.close()
        await instances.close()
        await engine.close()
        await sources.close()
        await ledger.close()
        await store.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


def test_an_update_that_never_becomes_healthy_is_rolled_back(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "START_TIMEOUT", 1.0)

    async def main() -> None:
        async with running(data) as (services, instances):
            await services.create(EnvServiceCreateRequest(envName="fragile", service_name="s", replicas=2), OWNER)
            before = await services.get("s", OWNER, wait=30)
            assert before.available_replicas == 2
            await services.update("s", EnvServiceUpdateRequest(environment_variables={"HEALTH": "error"}), OWNER)
            after = await services.get("s", OWNER, wait=30)
            assert (after.status, after.revision, after.environment_variables) == ("Running", 1, None)
            assert after.reason is not None
            assert after.reason.startswith("the update to revision 2 failed and was rolled back")
            assert "its health check says 'as it was told'" in after.reason
            assert set(after.instances or []) == set(before.instances or [])
            await services.delete("s", OWNER, storage=False)
            assert (await instances.page("*")).items == []

    run(main())


def test_a_replica_that_keeps_crashing_is_replaced_with_backoff(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "BACKOFF", 0.01)

    async def main() -> None:
        async with running(data) as (services, instances):
            await services.create(EnvServiceCreateRequest(envName="fragile", service_name="s"), OWNER)
            service = await services.reconciler("s", OWNER)
            pauses = []
            for _ in range(4):
                while not any(replica.ready for replica in service.replicas):
                    await service.round_done.wait()
                (name,) = [replica.id for replica in service.replicas]
                await instances.delete(name)
                service.wake()
                while any(replica.id == name for replica in service.replicas):
                    await service.round_done.wait()
                pauses.append(service.retry_at - service.lost_at)
            assert pauses[0] < 0  # the first replacement starts at once
            assert [round(pause, 3) for pause in pauses[1:]] == [0.04, 0.08, 0.16]
            assert (await services.get("s", OWNER)).restarts == 4

    run(main())


def test_replicas_wait_for_admission_on_a_full_platform(data: Path) -> None:
    async def main() -> None:
        async with running(data, Capacity(alive=1)) as (services, instances):
            taken = await instances.create(EnvInstanceCreateRequest(envName="fragile"))
            await services.create(EnvServiceCreateRequest(envName="fragile", service_name="s"), OWNER)
            service = await services.reconciler("s", OWNER)
            while (found := await services.get("s", OWNER)).status != "Pending":
                await service.round_done.wait()
            assert found.reason is not None
            assert "the platform is full" in found.reason
            await instances.delete(taken.id)
            assert (await services.get("s", OWNER, wait=30)).status == "Running"

    run(main())


def test_existing_replicas_are_adopted_and_orphans_are_ended(data: Path) -> None:
    async def main() -> None:
        async with running(data) as (services, instances):
            await services.create(EnvServiceCreateRequest(envName="fragile", service_name="s"), OWNER)
            there = (await services.get("s", OWNER, wait=30)).instances
            await services.close(hand_over=True)
            plain = await instances.create(EnvInstanceCreateRequest(envName="fragile"))
            request = EnvInstanceCreateRequest(envName="fragile", request_id="gone/1")
            orphan = await instances.create(request, OWNER, Replica(service="gone", revision=1))
            assert await services.open() == 1
            assert (await services.get("s", OWNER, wait=30)).instances == there
            await services.runner.end_orphan_replicas()
            left = {each.id for each in (await instances.page("*")).items}
            assert left == {plain.id, *(there or [])}
            assert orphan.id not in left

    run(main())


@pytest.mark.attack("tenants")
@pytest.mark.parametrize("label", ["service", "service-revision"])
def test_callers_cannot_set_the_labels_of_replicas(data: Path, label: str) -> None:
    bob = Caller("bob", "user")

    async def main() -> None:
        async with running(data) as (services, instances):
            request = EnvInstanceCreateRequest(envName="fragile", labels={label: "1"}, request_id="s/1")
            with pytest.raises(InvalidArguments, match="reserved"):
                await instances.create(request, bob)
            with pytest.raises(InvalidArguments, match="reserved"):
                await instances.create_many(request, 2, bob)
            with pytest.raises(InvalidArguments, match="reserved"):
                await services.create(EnvServiceCreateRequest(envName="fragile", labels={label: "1"}), bob)
            assert (await instances.page("*")).items == []

    run(main())


@pytest.mark.attack("tenants")
def test_a_service_never_adopts_an_instance_because_of_its_labels(data: Path) -> None:
    bob = Caller("bob", "user")

    async def main() -> None:
        async with running(data) as (services, instances):
            await services.create(EnvServiceCreateRequest(envName="fragile", service_name="s"), OWNER)
            there = (await services.get("s", OWNER, wait=30)).instances
            await services.close(hand_over=True)
            made = await instances.create(EnvInstanceCreateRequest(envName="fragile", request_id="s/1"), bob)
            record = instances.find(made.id, bob)
            record.request = record.request.model_copy(update={"labels": {"service": "s", "service-revision": "1"}})
            assert await services.open() == 1
            assert (await services.get("s", OWNER, wait=30)).instances == there
            with pytest.raises(NotFound):
                await services.get("s", bob)
            await services.runner.end_orphan_replicas()
            assert (await instances.get(made.id, caller=bob)).status == "Running"

    run(main())


@pytest.mark.attack("tenants")
def test_a_handover_record_names_the_service_and_older_ones_are_not_trusted(data: Path) -> None:
    async def main() -> None:
        async with running(data) as (services, instances):
            await services.create(EnvServiceCreateRequest(envName="fragile", service_name="s"), OWNER)
            (name,) = (await services.get("s", OWNER, wait=30)).instances or []
            record = instances.find(name)
            assert record.ref is not None
            text = handover.dump(record)
            loaded = handover.load(text, record.ref)
            assert loaded is not None
            assert loaded.replica == Replica(service="s", revision=1)
            older = {key: value for key, value in json.loads(text).items() if key not in ("service", "revision")}
            assert handover.load(json.dumps(older), record.ref) is None

    run(main())


@pytest.mark.long
def test_another_server_changes_a_service_and_takes_it_over(data: Path) -> None:
    async def main(one: str, other: str) -> None:
        async with ApiClient(one) as api, ApiClient(other) as beside:
            await api.create_env_service("fragile", "s")
            assert (await api.get_env_service("s", wait=20)).status == "Running"
            assert [each.id for each in await beside.list_env_services()] == ["s"]
            await beside.update_env_service("s", replicas=2)  # done by the server that runs it
            while (await beside.get_env_service("s")).available_replicas < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert len((await api.get_env_service("s")).instances or []) == 2

    async def after(other: str) -> None:
        async with ApiClient(other) as beside:
            while len(await beside.list_env_instances("fragile")) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert (await beside.get_env_service("s", wait=20)).available_replicas == 2
            status, _ = await asyncio.to_thread(fetch, f"{other}/service/s", "/health")
            assert status == 200
            await beside.delete_env_service("s")
            assert await beside.list_env_instances("fragile") == []

    with serving(data, auth=False) as other:
        with serving(data, auth=False) as one:
            run(main(one.url, other.url))
            one.process.send_signal(signal.SIGKILL)
            one.process.wait(30)
        run(after(other.url))


def test_a_storage_is_deleted_only_by_the_service_that_claims_it(data: Path) -> None:
    """Deleting a storage that another service has claimed in the meantime deletes nothing."""

    async def main() -> None:
        async with running(data) as (services, _):
            request = EnvServiceCreateRequest(envName="fragile", service_name="s", pvc_name="p", storage_size="1Mi")
            await services.create(request, OWNER)
            await services.get("s", OWNER, wait=30)
            store = open_store(str(data / "platform.db"))
            await Storages(store, data / "storage").release(OWNER.name, "p", "another", delete=True)
            await store.close()
            (folder,) = (data / "storage").iterdir()
            (folder / "file").write_text("kept")
            await services.delete("s", OWNER, storage=False)
            assert (folder / "file").read_text() == "kept"
            shutil.rmtree(folder)

    run(main())


@pytest.mark.attack("disk")
def test_a_storage_with_deeply_nested_folders_is_deleted(data: Path) -> None:
    async def main() -> None:
        async with running(data) as (services, _):
            request = EnvServiceCreateRequest(envName="fragile", service_name="s", pvc_name="p", storage_size="1Mi")
            await services.create(request, OWNER)
            await services.get("s", OWNER, wait=30)
            (folder,) = (data / "storage").iterdir()
            nest(folder)
            await services.delete("s", OWNER, storage=True)
            assert not folder.exists()

    run(main())
