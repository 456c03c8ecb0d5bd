"""Makes the pods of packed hosts, and tells what becomes of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aenv.engines.base import Exit
from aenv.engines.kubernetes import pod_status
from aenv.engines.kubernetes.host_manifest import host_objects
from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings
from aenv.engines.kubernetes.pod_manifest import PORT, InstanceObjects, Owner, check_image
from aenv.engines.kubernetes.pod_status import Pod
from aenv.engines.kubernetes.pod_templates import PodTemplates
from aenv.engines.kubernetes.pod_watch import PodWatch
from aenv.engines.packed.packed_hosts import HostGroup


class ClusterHostPods:
    """Host pods of one engine."""

    def __init__(
        self,
        settings: KubernetesSettings,
        isolation: str,
        pods: PodWatch,
        templates: PodTemplates,
        owner: Callable[[], Owner],
        start: Callable[[str, InstanceObjects], Awaitable[Pod]],
        remove: Callable[[str], Awaitable[None]],
    ) -> None:
        """``start`` creates the objects and waits until the pod answers; ``remove`` ends a pod."""
        self._settings = settings
        self._isolation = isolation
        self._pods = pods
        self._templates = templates
        self._owner = owner
        self._start = start
        self._remove = remove

    async def make(self, name: str, token: str, group: HostGroup) -> tuple[str, int]:
        """Make a host; return the address and port at which it answers."""
        check_image(self._settings.image, "AENV_KUBERNETES_IMAGE")
        objects = host_objects(
            name, token, group, template=self._templates.host(), owner=self._owner(), image=self._settings.image,
            isolation=self._isolation, limits=self._settings.hosts, cpus=self._settings.host_cpus,
        )  # fmt: skip
        pod = await self._start(name, objects)
        return str(pod["status"]["podIP"]), PORT

    async def until_leaving(self, name: str) -> None:
        """Return once the pod is to be deleted, or gone."""
        await self._pods.until(name, lambda pod: True if pod is None or _is_leaving(pod) else None)

    async def until_lost(self, name: str) -> Exit:
        """Return how the host has ended, once it has. One that is being deleted still has its instances."""
        return await self._pods.until(name, host_exit)

    async def remove(self, name: str) -> None:
        """Return when the host is gone. Idempotent."""
        await self._remove(name)


def host_exit(pod: Pod | None) -> Exit | None:
    """Return how a host has ended; None while its instances can still be alive."""
    if pod is None:
        return pod_status.exit_of(None)
    if pod_status.is_gone(pod):
        return Exit(-1, "its pod was deleted from outside", "killed")
    metadata = {key: value for key, value in pod["metadata"].items() if key != "deletionTimestamp"}
    status = pod.get("status") or {}
    conditions = [each for each in status.get("conditions") or () if each.get("type") != "DisruptionTarget"]
    return pod_status.exit_of({**pod, "metadata": metadata, "status": {**status, "conditions": conditions}})


def _is_leaving(pod: Pod) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    disrupted = any(each.get("type") == "DisruptionTarget" and each.get("status") == "True" for each in conditions)
    return disrupted or bool(pod["metadata"].get("deletionTimestamp"))
