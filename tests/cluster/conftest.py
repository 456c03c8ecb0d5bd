"""Tests on a real Kubernetes cluster: the one that ``KUBECONFIG`` names.

They need the base image in ``AENV_KUBERNETES_IMAGE``: Python and this version of aenvironment. Every test counts the
objects of the engine in the namespace before and after; so each worker of pytest-xdist has a namespace of its own,
``AENV_KUBERNETES_NAMESPACE`` and its name, such as ``test-gw0``, which has to exist.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aenv.engines.base import Engine
from aenv.isolation.limits.cgroups import Limits

IMAGE = os.environ.get("AENV_KUBERNETES_IMAGE", "")  # read here: tests run without the variables of aenv
NAMESPACE = "-".join(filter(None, map(os.environ.get, ("AENV_KUBERNETES_NAMESPACE", "PYTEST_XDIST_WORKER"))))
MISSING = [name for name in ("KUBECONFIG", "AENV_KUBERNETES_IMAGE") if not os.environ.get(name)]
SMALL = Limits(memory=64 << 20, cpus=0.05, disk=16 << 20)
"""Amounts to reserve that let several instances fit on a small node."""
KINDS = ("pods", "secrets", "leases", "networkpolicies")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder where there is no cluster."""
    for item in items:
        if Path(__file__).parent in item.path.parents and MISSING:
            item.add_marker(pytest.mark.skip(reason=f"needs a Kubernetes cluster: {' and '.join(MISSING)} not set"))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves objects in the cluster."""
    before = asyncio.run(objects())
    yield
    assert asyncio.run(objects_once_settled(before)) == before


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="aenv-k-", dir="/tmp"))
    yield made
    left = [path for path in (made / "engine").rglob("*") if path.is_file()]
    shutil.rmtree(made)
    assert left == []


@pytest.fixture
def engine(folder: Path) -> Callable[[], Engine]:
    from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings
    from aenv.engines.kubernetes.pod_engine import KubernetesEngine

    return lambda: KubernetesEngine(folder / "engine", KubernetesSettings(namespace=NAMESPACE, image=IMAGE))


async def objects() -> Counter[str]:
    """Count the engine's objects in the namespace, by kind."""
    from aenv.engines.kubernetes import pod_labels
    from aenv.engines.kubernetes.cluster_api import ClusterApi

    api = await ClusterApi.connect(namespace=NAMESPACE)
    try:
        query = {"labelSelector": pod_labels.selector(pod_labels.MANAGED_BY)}
        lists = [await api.request("GET", kind, query=query) for kind in KINDS]
    finally:
        await api.close()
    return Counter({kind: len(found["items"]) for kind, found in zip(KINDS, lists, strict=True)})


async def objects_once_settled(expected: Counter[str]) -> Counter[str]:
    """Count until the counts are as expected, as long as the test's time limit allows: deletion takes its time."""
    async with asyncio.timeout(180):
        while (found := await objects()) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return found
