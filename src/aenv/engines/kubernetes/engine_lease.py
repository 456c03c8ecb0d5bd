"""The Lease of an engine: it owns all objects of the engine's instances, and shows that the engine is alive.

Every object of an instance has the Lease as its owner, so Kubernetes deletes them with it. An engine that was killed
does not renew its Lease; any other engine in the namespace then deletes it. Expiry is judged by the time that this
process has seen no renewal, and not by the time in the Lease: clocks of two machines differ.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from datetime import UTC, datetime
from typing import Any

from aenv.engines.kubernetes import pod_labels
from aenv.engines.kubernetes.cluster_api import ApiError, ClusterApi
from aenv.engines.kubernetes.pod_manifest import Owner
from aenv.errors import AEnvError, ConfigError
from aenv.tracing.logging import getLogger

log = getLogger("kubernetes")

RENEW_SECONDS = 10.0
EXPIRY_SECONDS = 45.0
"""Delete the Lease of an engine that has not renewed it for this long, and all of its pods."""
_COMPONENT = {"app.kubernetes.io/component": "engine"}


class EngineLease:
    """The Lease of this engine, and the watch over those of others."""

    def __init__(
        self,
        api: ClusterApi,
        *,
        config_map: str = "",
        renew: float = RENEW_SECONDS,
        expiry: float = EXPIRY_SECONDS,
    ) -> None:
        """``config_map``: ConfigMap that owns the Lease, so that Kubernetes deletes everything with it."""
        self._api = api
        self._config_map = config_map
        self._renew_seconds = renew
        self._expiry = expiry
        self.owner = Owner("", "")
        self._seen: dict[str, tuple[str, float]] = {}
        """Renewal time in the Lease of each engine, and when this process first saw it, by the Lease's uid."""
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Create the Lease, and keep it renewed.

        Raises:
            ApiError, Unavailable: it cannot be created.
            ConfigError: the ConfigMap that should own it cannot be read.
        """
        await self._create(f"aenv-{secrets.token_hex(5)}")
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Delete the Lease, and with it all objects that it owns."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.owner.name:
            await self._delete(self.owner)

    async def collect(self) -> list[str]:
        """Delete the Leases of dead engines; return their names."""
        query = {"labelSelector": pod_labels.selector({**pod_labels.MANAGED_BY, **_COMPONENT})}
        found = (await self._api.request("GET", "leases", query=query)).get("items") or []
        now, seen, dead = time.monotonic(), {}, []
        for lease in found:
            owner = Owner(lease["metadata"]["name"], lease["metadata"]["uid"])
            renewed = str((lease.get("spec") or {}).get("renewTime"))
            before, since = self._seen.get(owner.uid, ("", now))
            seen[owner.uid] = (renewed, since if before == renewed else now)
            if owner.uid != self.owner.uid and now - seen[owner.uid][1] > self._expiry:
                log.warning("engine %s has ended without removing its instances; they are removed now", owner.name)
                await self._delete(owner)
                dead.append(owner.name)
        self._seen = seen
        return dead

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._renew_seconds)
            try:
                await self._renew()
                await self.collect()
            except (ApiError, AEnvError) as error:
                log.warning("the lease %s could not be renewed: %s", self.owner.name, error.message)

    async def _renew(self) -> None:
        """Write the time into the Lease. If another engine has removed it, make a new one: its pods are gone."""
        body = {"spec": {"renewTime": _now()}}
        try:
            current = await self._api.request("GET", "leases", self.owner.name)
            current["spec"] = {**(current.get("spec") or {}), **body["spec"]}
            await self._api.request("PUT", "leases", self.owner.name, current)
        except ApiError as error:
            if error.answer != 404:
                raise
            log.warning("the lease %s is gone, and its instances with it", self.owner.name)
            await self._create(self.owner.name)

    async def _create(self, name: str) -> None:
        body = lease_manifest(name, self._expiry)
        if self._config_map:
            body["metadata"]["ownerReferences"] = [await self._config_map_reference()]
        made = await self._api.request("POST", "leases", body=body)
        self.owner = Owner(name, made["metadata"]["uid"])

    async def _config_map_reference(self) -> dict[str, Any]:
        try:
            found = await self._api.request("GET", "configmaps", self._config_map)
        except ApiError as error:
            raise ConfigError(f"AENV_KUBERNETES_OWNER: the ConfigMap cannot be read: {error.message}") from error
        about = found["metadata"]
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": about["name"], "uid": about["uid"]}

    async def _delete(self, owner: Owner) -> None:
        body = {"propagationPolicy": "Background", "preconditions": {"uid": owner.uid}}
        try:
            await self._api.request("DELETE", "leases", owner.name, body)
        except ApiError as error:
            if error.answer not in (404, 409):
                raise


def lease_manifest(name: str, expiry: float) -> dict[str, Any]:
    """Return the Lease of a new engine."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": {**pod_labels.MANAGED_BY, **_COMPONENT}},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": max(1, round(expiry)), "renewTime": _now()},
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
