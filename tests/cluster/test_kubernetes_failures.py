"""Failures on a real cluster become typed errors and exits, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import Engine, Exit, SandboxRef, SandboxSpec
from aenv.errors import AEnvError, CapacityExhausted, ConfigError, ImageUnavailable, LoadError
from aenv.http.url import ServerUrl
from aenv.isolation.limits.cgroups import Limits
from tests.cluster.conftest import IMAGE, NAMESPACE, SMALL, objects

pytestmark = pytest.mark.long

SOURCE = """
import os, pathlib, sys
from aenv import register_tool

hoard = []

@register_tool
def eat() -> None:
    while True:
        hoard.append(bytearray(16 << 20))

@register_tool
def about() -> dict:
    readable = pathlib.Path("/var/run/secrets/kubernetes.io").exists()
    return {
        "arguments": sys.argv[1:], "uid": os.getuid(), "service_account": readable,
        "token": os.environ.get("AENV_TOKEN"),
        "data": pathlib.Path("data.txt").read_text(), "private_seen": pathlib.Path("private").exists(),
    }
"""


@pytest.fixture
def spec(folder: Path) -> SandboxSpec:
    project = folder / "project"
    (project / "private").mkdir(parents=True)
    (project / "private" / "answer").write_text("42")
    (project / "data.txt").write_text("beside the code")
    (project / "env.py").write_text(SOURCE)
    return SandboxSpec("typed@1.0.0", project, project, requests=SMALL, limits=Limits(memory=256 << 20))


def use(engine: Callable[[], Engine], work: Callable[[Any], Awaitable[None]]) -> None:
    """Run ``work`` with a new engine, and close it."""

    async def main() -> None:
        made = engine()
        try:
            await work(made)
        finally:
            await made.close()

    asyncio.run(asyncio.wait_for(main(), 100))


async def call(ref: SandboxRef, tool: str) -> Any:
    client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
    try:
        return await client.call(f"/tools/{tool}", {}, timeout=30)
    finally:
        client.close()


async def ended(engine: Engine, ref: SandboxRef) -> Exit:
    """Return how an instance ended, once it has."""
    while (found := await engine.poll(ref)) is None:  # noqa: ASYNC110 - bounded by `use`
        await asyncio.sleep(0.05)
    return found


def test_an_instance_has_its_files_and_arguments_and_no_rights(engine: Callable[[], Engine], spec: SandboxSpec) -> None:
    async def work(made: Engine) -> None:
        ref = await made.start(replace(spec, arguments=["--level", "$(HOME)"], labels={"experiment": "a b"}))
        answer = await call(ref, "about")
        assert json.loads(answer["content"][0]["text"]) == {
            "arguments": ["--level", "$(HOME)"], "uid": 10001, "service_account": False, "token": None,
            "data": "beside the code", "private_seen": False,
        }  # fmt: skip

    use(engine, work)


def test_an_image_that_cannot_be_pulled_is_reported_with_its_name(
    engine: Callable[[], Engine], spec: SandboxSpec
) -> None:
    async def work(made: Engine) -> None:
        with pytest.raises(ImageUnavailable, match=r"no-such-registry\.invalid/env:1"):
            await made.start(replace(spec, image="no-such-registry.invalid/env:1"))
        assert [ref async for ref in made.running()] == []

    use(engine, work)


def test_an_instance_that_fits_on_no_node_is_refused_with_the_schedulers_reason(spec: SandboxSpec) -> None:
    async def work(made: Engine) -> None:
        huge = Limits(memory=256 << 20, cpus=10_000)
        with pytest.raises(CapacityExhausted, match="Insufficient cpu"):
            await made.start(replace(spec, limits=huge, requests=huge))

    use(lambda: kubernetes_engine(spec.project.parent, unschedulable_seconds=0.2), work)


def test_an_instance_at_its_memory_limit_ends_by_the_agents_fault(
    engine: Callable[[], Engine], spec: SandboxSpec
) -> None:
    async def work(made: Engine) -> None:
        ref = await made.start(spec)
        with pytest.raises(AEnvError):
            await call(ref, "eat")
        exit_ = await ended(made, ref)
        assert (exit_.cause, exit_.fault) == ("out_of_memory", "policy")

    use(engine, work)


def test_code_that_needs_more_memory_than_the_limit_is_reported(
    engine: Callable[[], Engine], spec: SandboxSpec
) -> None:
    async def work(made: Engine) -> None:
        (spec.project / "env.py").write_text("hoard = [bytearray(16 << 20) for _ in range(1000)]\n")
        with pytest.raises(LoadError, match="memory limit"):
            await made.start(spec)

    use(engine, work)


def test_a_pod_that_somebody_deletes_ends_by_the_platforms_fault(
    engine: Callable[[], Engine], spec: SandboxSpec
) -> None:
    async def work(made: Any) -> None:
        ref = await made.start(spec)
        await with_api("DELETE", "pods", ref.id)
        exit_ = await ended(made, ref)
        assert (exit_.cause, exit_.fault) == ("killed", "infra")
        await made.stop(ref)

    use(engine, work)


def test_templates_come_from_a_config_map(spec: SandboxSpec) -> None:
    template = (
        "{apiVersion: v1, kind: Pod, spec: {nodeSelector: {kubernetes.io/os: linux}, containers: [{name: main}]}}"
    )
    body = {"metadata": {"name": "aenv-test-templates"}, "data": {"linuxNodes.yaml": template}}

    async def work(made: Any) -> None:
        with pytest.raises(ConfigError, match="'gpus'; this platform has: dualContainer, linuxNodes, singleContainer"):
            await made.start(replace(spec, template="gpus"))
        ref = await made.start(replace(spec, template="LinuxNodes"))
        pod = await with_api("GET", "pods", ref.id)
        assert pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}

    asyncio.run(with_api("POST", "configmaps", "", body))
    try:
        use(lambda: kubernetes_engine(spec.project.parent, templates="configmap:aenv-test-templates"), work)
    finally:
        asyncio.run(with_api("DELETE", "configmaps", "aenv-test-templates", None))


def test_the_instances_of_a_killed_engine_are_collected(spec: SandboxSpec) -> None:
    program = [sys.executable, "-m", "tests.cluster.engine_to_kill", str(spec.project), IMAGE, NAMESPACE]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
        finally:
            os.kill(process.pid, signal.SIGKILL)
    assert asyncio.run(objects())["pods"] == 1

    async def collect() -> None:
        from aenv.engines.kubernetes.engine_lease import EngineLease

        api = await connected()
        lease = EngineLease(api, expiry=0.5)
        await lease.open()
        try:
            while not await lease.collect():  # noqa: ASYNC110 - bounded below
                await asyncio.sleep(0.2)
        finally:
            await lease.close()
            await api.close()

    asyncio.run(asyncio.wait_for(collect(), 60))  # and then the fixture sees to it that nothing is left


def kubernetes_engine(folder: Path, **settings: Any) -> Engine:
    from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings
    from aenv.engines.kubernetes.pod_engine import KubernetesEngine

    return KubernetesEngine(folder / "engine", KubernetesSettings(namespace=NAMESPACE, image=IMAGE, **settings))


async def connected() -> Any:
    from aenv.engines.kubernetes.cluster_api import ClusterApi

    return await ClusterApi.connect(namespace=NAMESPACE)


async def with_api(*request: Any) -> Any:
    api = await connected()
    try:
        return await api.request(*request)
    finally:
        await api.close()
