"""Report of the engine's rights in a cluster, and of what runs there: ``aenv cluster doctor`` and ``status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from aenv.engines.kubernetes import pod_labels
from aenv.engines.kubernetes.cluster_api import ApiError, ClusterApi
from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings
from aenv.errors import AEnvError, Unavailable

RIGHTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "pods", ("create", "get", "list", "watch", "delete")),
    ("", "pods/log", ("get",)),
    ("", "secrets", ("create", "delete")),
    ("", "persistentvolumeclaims", ("create", "delete")),
    ("", "configmaps", ("get",)),
    ("coordination.k8s.io", "leases", ("create", "get", "list", "update", "delete")),
    ("networking.k8s.io", "networkpolicies", ("create", "delete")),
)
"""API group, resource and verbs: the rights that the engine needs. The Role of the chart has the same."""


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """Result of one check."""

    what: str
    state: Literal["ok", "missing", "broken"]
    """``missing``: an optional part is not available; ``broken``: no instance can be started without it."""
    said: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A platform server that runs instances in the namespace, and its pods by phase."""

    name: str
    renewed: str
    """Time of the last renewal of its Lease."""
    pods: dict[str, int] = field(default_factory=dict)


async def examine(settings: KubernetesSettings) -> list[ClusterFinding]:
    """Check the connection, the rights and the settings. The first finding is the connection."""
    try:
        async with _connected(settings) as api:
            host, port = api.server_address
            said = f"Kubernetes {await api.version()} at {host}:{port}, namespace {api.namespace}"
            lacking = [
                f"{verb} {resource}"
                for group, resource, verbs in RIGHTS
                for verb in verbs
                if not await api.may(verb, group, resource)
            ]
    except AEnvError as error:
        return [ClusterFinding("connection", "broken", error.message, str(error.details.get("hint", "")))]
    return [ClusterFinding("connection", "ok", said), _rights(lacking), _image(settings)]


def _rights(lacking: list[str]) -> ClusterFinding:
    if not lacking:
        return ClusterFinding("rights", "ok", "all that the engine needs, in this namespace")
    hint = "Bind the Role of the guide, docs/guides/kubernetes.md#security."
    return ClusterFinding("rights", "broken", f"not allowed: {', '.join(lacking)}", hint)


def _image(settings: KubernetesSettings) -> ClusterFinding:
    if settings.image:
        return ClusterFinding("base image", "ok", settings.image)
    hint = "Set AENV_KUBERNETES_IMAGE to an image with Python and this version of aenvironment."
    return ClusterFinding("base image", "missing", "environments without an image of their own cannot run", hint)


async def status(settings: KubernetesSettings) -> list[EngineStatus]:
    """Return the engines that run in the namespace, sorted by name.

    Raises:
        AEnvError: the cluster cannot be reached, or does not let this user look.
    """
    query = {"labelSelector": pod_labels.selector(pod_labels.MANAGED_BY)}
    async with _connected(settings) as api:
        leases = (await api.request("GET", "leases", query=query)).get("items") or ()
        pods = (await api.request("GET", "pods", query=query)).get("items") or ()
    phases: dict[str, Counter[str]] = {}
    for pod in pods:
        engine = (pod["metadata"].get("labels") or {}).get(pod_labels.ENGINE, "")
        phases.setdefault(engine, Counter())[str((pod.get("status") or {}).get("phase") or "Unknown")] += 1
    renewed = {
        lease["metadata"]["name"]: str((lease.get("spec") or {}).get("renewTime") or "never") for lease in leases
    }
    return [
        EngineStatus(name, renewed.get(name, "its Lease is gone"), dict(phases.get(name, {})))
        for name in sorted({*phases, *renewed})
    ]


@asynccontextmanager
async def _connected(settings: KubernetesSettings) -> AsyncIterator[ClusterApi]:
    api = await ClusterApi.connect(namespace=settings.namespace, context=settings.context)
    try:
        yield api
    except ApiError as error:
        raise Unavailable(error.message) from error
    finally:
        await api.close()
