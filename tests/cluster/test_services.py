"""Services on a real cluster: replicas are pods, and a storage is a PersistentVolumeClaim that outlives the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings
from aenv.engines.kubernetes.pod_engine import KubernetesEngine
from aenv.http.url import ServerUrl
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.platform.access.platform_tokens import OWNER
from aenv.platform.instances.ledger import Ledger
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.instances.requests.env_sources import Sources
from aenv.platform.services.services import Services
from aenv.schema.instances import EnvServiceCreateRequest, HubAccess
from aenv.storage.open_url import open_store
from tests.cluster.conftest import IMAGE, NAMESPACE
from tests.cluster.test_installation import kubectl
from tests.hub.parts import push
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

CODE = """
import pathlib
from aenv import register_tool

@register_tool
def note(text: str) -> str:
    file = pathlib.Path("/data/notes")
    if text:
        file.write_text(text)
    return file.read_text() if file.exists() else ""
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Services, Instances]]:
    """Run services in this process, with an engine on the cluster."""
    store = open_store(str(folder / "platform.db"))
    ledger = Ledger(store)
    await ledger.open()
    hub = LocalHub(open_catalog(HubLocation.of(data=folder)))
    await push(hub, "noting", "1.0.0", CODE, public=True, force=True)
    await hub.close()
    access = HubAccess(data=str(folder), cache=str(folder / "cache"))
    sources = Sources(lambda access: LocalHub(open_catalog(HubLocation.of(data=folder))), only_hub=access)
    settings = KubernetesSettings(namespace=NAMESPACE, image=IMAGE, fix_ownership=True)
    engine = KubernetesEngine(folder / "engine", settings)
    instances = Instances(engine, sources, direct=False, ledger=ledger)
    services = Services(instances, sources, ledger, folder / "storage", grace=1.0)
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


async def note(instances: Instances, text: str = "") -> str:
    (record,) = [each for each in instances.replicas() if each.ref is not None]
    assert record.ref is not None
    client = InstanceClient(ServerUrl.parse(record.ref.data_url), token=record.ref.token)
    try:
        return str((await client.call("/tools/note", {"text": text}, timeout=30))["content"][0]["text"])
    finally:
        client.close()


def claims() -> list[str]:
    return kubectl("-n", NAMESPACE, "get", "persistentvolumeclaims", "-l", "aenv/storage=notes", "-o", "name").split()


def test_a_service_with_a_storage_survives_its_deletion_and_another_server(folder: Path) -> None:
    request = EnvServiceCreateRequest(
        envName="noting", service_name="s", pvc_name="notes", storage_size="16Mi", mount_path="/data",
        cpu_request="100m", cpu_limit="1", memory_request="128Mi", memory_limit="256Mi",
    )  # fmt: skip

    async def main() -> None:
        async with running(folder) as (services, instances):
            await services.create(request, OWNER)
            assert (await services.get("s", OWNER, wait=60)).status == "Running"
            assert await note(instances, "kept") == "kept"
            await services.delete("s", OWNER, storage=False)
            await wait_until(lambda: not instances.replicas(), 60)
            assert len(claims()) == 1
        async with running(folder) as (services, instances):  # as a platform that was restarted
            await services.create(request, OWNER)
            assert (await services.get("s", OWNER, wait=60)).status == "Running"
            assert await note(instances) == "kept"
            await services.delete("s", OWNER, storage=True)
            await wait_until(lambda: not claims(), 60)

    asyncio.run(asyncio.wait_for(main(), 220))
