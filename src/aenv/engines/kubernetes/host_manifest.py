"""Manifests of a host pod's objects: pure functions, covered by golden files.

The pod passes the Pod Security standard "restricted", unless the administrator's template ``packedHost`` says
otherwise.
"""

from __future__ import annotations

import base64
from typing import Any

from aenv.engines.kubernetes import pod_labels
from aenv.engines.kubernetes.pod_manifest import PORT, STARTUP_PROBES, InstanceObjects, Owner, owner_reference, secure
from aenv.engines.kubernetes.pod_templates import MAIN
from aenv.engines.packed.packed_hosts import HostGroup, HostLimits
from aenv.schema import paths

DRAIN_SECONDS = 600
"""How long a host that is about to end waits for its instances."""
TEMPORARY = "tmp"
_POOL = 8


def host_objects(
    name: str,
    token: str,
    group: HostGroup,
    *,
    template: dict[str, Any],
    owner: Owner,
    image: str,
    isolation: str,
    limits: HostLimits,
    cpus: float,
) -> InstanceObjects:
    """Return the objects of a host. ``template``: a copy, which is changed."""
    metadata = _metadata(name, group, owner)
    own = template.get("metadata") or {}
    pod = {
        **template,
        "metadata": {
            **metadata,
            "labels": {**(own.get("labels") or {}), **metadata["labels"]},
            "annotations": {**(own.get("annotations") or {}), **metadata["annotations"]},
        },
    }
    body = pod["spec"]
    main = next(each for each in body["containers"] if each["name"] == MAIN)
    main.update(
        {
            "image": main.get("image") or image,
            "command": ["python3", "-m", "aenv.engines.packed"],
            "ports": [{"containerPort": PORT, "protocol": "TCP"}],
            "startupProbe": {
                "httpGet": {"path": paths.HEALTH, "port": PORT},
                "periodSeconds": 1,
                "timeoutSeconds": 5,
                "failureThreshold": STARTUP_PROBES,
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
    )
    main["env"] = [*main.get("env", ()), *_variables(name, isolation)]
    main["volumeMounts"] = [*main.get("volumeMounts", ()), {"name": TEMPORARY, "mountPath": "/tmp"}]
    amounts = {"cpu": f"{max(1, round(cpus * 1000))}m", "memory": str(limits.size.memory)}
    main.setdefault("resources", {"requests": dict(amounts), "limits": dict(amounts)})
    body["volumes"] = [*body.get("volumes", ()), {"name": TEMPORARY, "emptyDir": {}}]
    body.setdefault("terminationGracePeriodSeconds", DRAIN_SECONDS)
    secure(body)
    data = {"token": base64.b64encode(token.encode()).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
    return InstanceObjects(secret, pod)


def host_policy(owner: Owner) -> dict[str, Any]:
    """Return the policy of hosts whose instances have no network: calls come in at any port, and nothing goes out."""
    labels = {**pod_labels.MANAGED_BY, pod_labels.ENGINE: owner.name}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": f"{owner.name}-hosts", "labels": labels, "ownerReferences": [owner_reference(owner)],
        },
        "spec": {
            "podSelector": {"matchLabels": {**labels, pod_labels.HOST: "closed"}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": [{"protocol": "TCP"}]}],
            "egress": [],
        },
    }  # fmt: skip


def _metadata(name: str, group: HostGroup, owner: Owner) -> dict[str, Any]:
    tenant = {pod_labels.TENANT: pod_labels.label_value(group.tenant)} if group.tenant else {}
    return {
        "name": name,
        "labels": {
            **pod_labels.MANAGED_BY,
            pod_labels.ENGINE: owner.name,
            pod_labels.HOST: "open" if group.network else "closed",
            **tenant,
        },
        "annotations": {pod_labels.TENANT: group.tenant} if group.tenant else {},
        "ownerReferences": [owner_reference(owner)],
    }


def _variables(secret: str, isolation: str) -> list[dict[str, Any]]:
    return [
        {"name": "HOME", "value": "/tmp"},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        {"name": "AENV_HOST_ISOLATION", "value": isolation},
        {"name": "AENV_HOST_POOL", "value": str(_POOL)},
        {"name": "AENV_HOST_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "AENV_HOST_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "token"}}},
    ]
