"""Instances packed into host pods of the standard "restricted", on a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import Engine, SandboxRef, SandboxSpec
from aenv.engines.packed.host_placement import HostSize
from aenv.engines.packed.packed_hosts import HostLimits
from aenv.errors import CapacityExhausted
from aenv.http.url import ServerUrl
from aenv.isolation.limits.cgroups import Limits
from aenv.testing.contracts import EngineContract
from tests.cluster.conftest import IMAGE, NAMESPACE
from tests.cluster.test_installation import kubectl
from tests.waiting import wait_until

pytestmark = pytest.mark.long

TEMPLATE = """
apiVersion: v1
kind: Pod
spec:
  containers:
    - name: main
      resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {cpu: "2", memory: 2Gi}}
"""
LIMITS = HostLimits(HostSize(instances=20, memory=2 << 30), hosts=4, wait_seconds=30.0)


@pytest.fixture
def packed(folder: Path) -> Callable[..., Engine]:
    from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings
    from aenv.engines.kubernetes.pod_engine import KubernetesEngine

    templates = folder / "templates"
    templates.mkdir()
    (templates / "packedHost.yaml").write_text(TEMPLATE)

    def make(**more: Any) -> Engine:
        settings = KubernetesSettings(
            namespace=NAMESPACE, image=IMAGE, templates=str(templates), hosts=replace(LIMITS, **more)
        )
        return KubernetesEngine(folder / "engine", settings, isolation="confined")

    return make


class TestPacked(EngineContract):
    @pytest.fixture
    def engine(self, packed: Callable[..., Engine]) -> Callable[..., Engine]:
        return packed


def use(packed: Callable[..., Engine], work: Callable[[Any], Awaitable[None]], **limits: Any) -> None:
    async def main() -> None:
        engine = packed(**limits)
        try:
            await work(engine)
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 100))


@pytest.fixture
def spec(folder: Path) -> SandboxSpec:
    project = folder / "project"
    project.mkdir()
    (project / "env.py").write_text("from aenv import register_tool\n@register_tool\ndef hello() -> int: return 1\n")
    return SandboxSpec("packed@1.0.0", project, project)


async def hello(ref: SandboxRef) -> str:
    client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
    try:
        return str((await client.call("/tools/hello", {}, timeout=30))["content"][0]["text"])
    finally:
        client.close()


def hosts() -> list[str]:
    found = kubectl("-n", NAMESPACE, "get", "pods", "-l", "aenv/host", "-o", "name")
    return found.split()


def test_a_lost_host_ends_its_instances_as_infrastructure_and_the_next_get_another(
    packed: Callable[..., Engine], spec: SandboxSpec
) -> None:
    async def work(engine: Engine) -> None:
        refs = await asyncio.gather(*(engine.start(spec) for _ in range(3)))
        assert [await hello(ref) for ref in refs] == ["1"] * 3
        assert {ref.isolation for ref in refs} == {"confined"}
        (host,) = await asyncio.to_thread(hosts)
        other = await engine.start(replace(spec, tenant="another"))
        assert len(await asyncio.to_thread(hosts)) == 2  # tenants do not share one
        await asyncio.to_thread(kubectl, "-n", NAMESPACE, "delete", host, "--grace-period=0", "--force", "--wait=false")
        how = None
        while how is None:
            how = await engine.poll(refs[0])
            await asyncio.sleep(0.05)
        assert (how.fault, how.cause) == ("infra", "lost")
        assert [await engine.poll(ref) for ref in refs] == [how] * 3
        assert await engine.poll(other) is None
        for ref in refs:
            await engine.stop(ref)
        assert await hello(await engine.start(spec)) == "1"

    use(packed, work)


def test_a_host_that_is_drained_keeps_its_instances_until_they_end(
    packed: Callable[..., Engine], spec: SandboxSpec
) -> None:
    async def work(engine: Engine) -> None:
        ref = await engine.start(spec)
        (host,) = await asyncio.to_thread(hosts)
        await asyncio.to_thread(kubectl, "-n", NAMESPACE, "delete", host, "--wait=false")  # as `kubectl drain` does
        later = await engine.start(spec)
        assert later.data_url.rpartition(":")[0] != ref.data_url.rpartition(":")[0]
        assert [await hello(ref), await hello(later)] == ["1", "1"]
        assert await engine.poll(ref) is None
        await engine.stop(ref)
        await wait_until(lambda: host not in hosts(), 60)

    use(packed, work)


def test_hosts_go_when_nothing_runs_on_them(packed: Callable[..., Engine], spec: SandboxSpec) -> None:
    async def work(engine: Engine) -> None:
        ref = await engine.start(spec)
        assert len(await asyncio.to_thread(hosts)) == 1
        await engine.stop(ref)
        await wait_until(lambda: not hosts(), 60)
        assert await hello(await engine.start(spec)) == "1"

    use(packed, work, idle_seconds=0.5)


def test_what_a_host_cannot_give_gets_a_pod_of_its_own(packed: Callable[..., Engine], spec: SandboxSpec) -> None:
    async def work(engine: Engine) -> None:
        small = Limits(memory=64 << 20, cpus=0.05, disk=16 << 20)
        alone = await engine.start(replace(spec, isolation="namespaces", requests=small))
        assert (await hello(alone), alone.isolation) == ("1", "")
        assert await asyncio.to_thread(hosts) == []
        held = replace(spec, variables={"POOLED": "1"})
        await engine.hold(held, 2)
        ref = engine.claim(held)
        assert ref is not None
        assert (await hello(ref), ref.isolation) == ("1", "confined")
        assert {each.id async for each in engine.running()} == {alone.id, ref.id}

    use(packed, work)


def test_without_room_for_another_host_a_create_fails_as_no_room(
    packed: Callable[..., Engine], spec: SandboxSpec
) -> None:
    async def work(engine: Engine) -> None:
        await engine.start(spec)
        with pytest.raises(CapacityExhausted, match="all 1 hosts are full"):
            await engine.start(spec)

    use(packed, work, hosts=1, size=HostSize(1, 1 << 30), wait_seconds=0.2)
