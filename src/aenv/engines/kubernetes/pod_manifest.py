"""Manifests of an instance's objects: pure functions from a request to JSON, so that golden tests can cover them.

The defaults pass the Pod Security standard "restricted". A template of the administrator may say otherwise: what it
sets is kept, except for the parts of the main container that make it the instance (image, command, variables,
resources, probe).

Variables and the instance's token are in a Secret and not in the pod: permission to read pods is given freely.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from aenv.authoring import second_container
from aenv.engines.base import SandboxSpec
from aenv.engines.kubernetes import pod_labels
from aenv.engines.kubernetes.pod_templates import MAIN, SECOND, has_second
from aenv.engines.project_archive import PRIVATE, WITHHELD
from aenv.errors import ConfigError, UsageError
from aenv.isolation.files.rootfs import PROJECT, SNAPSHOT
from aenv.isolation.files.volumes import Volume
from aenv.isolation.limits.cgroups import Limits
from aenv.schema import paths

PORT = paths.DATA_PORT
USER = 10001
"""User and group of all containers; the Dockerfile of ``aenv init`` uses it, too."""
GRACE_SECONDS = 5
STARTUP_PROBES = 3600
"""Probes at one a second before the kubelet gives up. The platform's own time limit for a start is shorter."""
NODE_LOSS_SECONDS = 30
"""How long a pod stays bound to a node that does not answer. The cluster's default is 300."""
FETCH = "bundle"
"""Name of the init container that fetches the project, and of its volume."""
SHARED_VOLUME = "shared"
"""Name of the volume that both containers of an instance have."""
STORAGE_VOLUME = "storage"
"""Name of the volume of a service's storage."""
FETCH_TOKEN = "bundle-token"
FETCH_FOLDER = "/bundle"
GPU = "nvidia.com/gpu"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ServedBundle:
    """A project's archive, for an instance without an image of its own."""

    url: str
    digest: str
    token: str
    base_image: str
    has_private: bool


@dataclass(frozen=True, slots=True)
class Owner:
    """The engine's Lease. Kubernetes deletes the objects of an instance when it is gone."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class InstanceObjects:
    """The objects of one instance, to be created in this order."""

    secret: dict[str, Any]
    pod: dict[str, Any]


def instance_objects(
    name: str,
    spec: SandboxSpec,
    token: str,
    *,
    template: dict[str, Any],
    owner: Owner,
    bundle: ServedBundle | None,
    fix_ownership: bool = False,
) -> InstanceObjects:
    """Return the objects of an instance. ``template``: a copy, which is changed.

    ``bundle``: None for an environment with an image. ``fix_ownership``: give a storage to the instance's user.

    Raises:
        UsageError: a variable's name is invalid.
    """
    metadata = _metadata(name, spec, owner)
    secret_values = {**_variables(spec), "AENV_TOKEN": token}
    pod = template
    own = pod.get("metadata") or {}
    pod["metadata"] = {
        **metadata,
        "labels": {**(own.get("labels") or {}), **metadata["labels"]},
        "annotations": {**(own.get("annotations") or {}), **metadata["annotations"]},
    }
    body = pod["spec"]
    main = next(each for each in body["containers"] if each["name"] == MAIN)
    main.update(_main_container(spec, bundle))
    main["env"] = [*_template_variables(main), *_constants(secret_values), *_secret_variables(name, secret_values)]
    main["resources"] = _resources(spec)
    if has_second(pod):
        _add_second_container(body, main, spec)
    if bundle is not None:
        secret_values[FETCH_TOKEN] = bundle.token
        body["initContainers"] = [_fetch_container(name, spec, bundle), *body.get("initContainers", ())]
        body["volumes"] = [*body.get("volumes", ()), {"name": FETCH, "emptyDir": {}}]
        main["volumeMounts"] = [*main.get("volumeMounts", ()), *_project_mounts()]
    if spec.volume is not None:
        _add_storage(body, main, spec.volume, fix_ownership=fix_ownership)
    secure(body)
    data = {key: base64.b64encode(value.encode()).decode() for key, value in secret_values.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
    return InstanceObjects(secret, pod)


def storage_claim(name: str, storage: str, size: int, storage_class: str) -> dict[str, Any]:
    """Return the claim of a storage. Nothing owns it: it outlives the service, and the platform."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "labels": {**pod_labels.MANAGED_BY, pod_labels.STORAGE: pod_labels.label_value(storage)},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": str(size)}},
            **({"storageClassName": storage_class} if storage_class else {}),
        },
    }


def network_policy(owner: Owner, bundle_host: str | None, bundle_port: int) -> dict[str, Any]:
    """Return the policy of the network ``loopback``: calls come in, and nothing goes out but the request for a bundle.

    It holds only where the cluster's network plug-in enforces policies. ``bundle_host``: None if it is not an address.
    """
    labels = {**pod_labels.MANAGED_BY, pod_labels.ENGINE: owner.name}
    fetch = {
        "to": [{"ipBlock": {"cidr": f"{bundle_host}/{128 if ':' in bundle_host else 32}"}}] if bundle_host else [],
        "ports": [{"protocol": "TCP", "port": bundle_port}],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{owner.name}-loopback", "labels": labels, "ownerReferences": [owner_reference(owner)]},
        "spec": {
            "podSelector": {"matchLabels": {**labels, pod_labels.NETWORK: "loopback"}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": PORT}]}],
            "egress": [fetch],
        },
    }


def _metadata(name: str, spec: SandboxSpec, owner: Owner) -> dict[str, Any]:
    whose = spec.variables.get("AENV_OWNER", "")
    return {
        "name": name,
        "labels": pod_labels.labels_of(
            spec.name, engine=owner.name, owner=whose, ttl=spec.ttl, network=spec.network.mode, user=spec.labels
        ),
        "annotations": pod_labels.annotations_of(spec.name, owner=whose, user=spec.labels),
        "ownerReferences": [owner_reference(owner)],
    }


def owner_reference(owner: Owner) -> dict[str, Any]:
    """Return the reference that makes Kubernetes delete an object with the engine's Lease."""
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": owner.name, "uid": owner.uid}


def _variables(spec: SandboxSpec) -> dict[str, str]:
    for name, value in spec.variables.items():
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"environment variable '{name}': Kubernetes allows letters, digits and underscores")
        if "\0" in value:
            raise UsageError(f"environment variable '{name}' contains a null character")
    return dict(spec.variables)


def _main_container(spec: SandboxSpec, bundle: ServedBundle | None) -> dict[str, Any]:
    probe = {
        "httpGet": {"path": paths.HEALTH, "port": PORT},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": STARTUP_PROBES,
    }
    container: dict[str, Any] = {
        "image": spec.image if bundle is None else bundle.base_image,
        "ports": [{"name": "aenv", "containerPort": PORT, "protocol": "TCP"}],
        # Not a readiness probe: that one would call the environment once a second for as long as it runs.
        "startupProbe": probe,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if bundle is None:
        return {**container, **({"args": _literal(spec.arguments)} if spec.arguments else {})}
    code = PurePosixPath(PROJECT) / spec.code.relative_to(spec.project).as_posix()
    command = [
        "python3", "-m", "aenv.main", str(code), "--host", "0.0.0.0", "--port", str(PORT), "--name", spec.name,
        "--grace", "1", "--snapshot", SNAPSHOT, "--withheld", PRIVATE if bundle.has_private else "",
        "--", *spec.arguments,
    ]  # fmt: skip
    return {**container, "command": _literal(command), "workingDir": PROJECT}


def _add_second_container(body: dict[str, Any], main: dict[str, Any], spec: SandboxSpec) -> None:
    """Let the container `SECOND` of the template run the image of the datasource, with the agent of `second_container`.

    It has none of the instance's variables, and nothing in common with the main one but the shared folder.
    """
    if not spec.second_image:
        raise UsageError(
            "podTemplate dualContainer needs a datasource: the image of the second container, or what follows the "
            "imagePrefix"
        )
    second = next(each for each in body["containers"] if each["name"] == SECOND)
    mount = {"name": SHARED_VOLUME, "mountPath": second_container.SHARED}
    shared = {"name": second_container.VARIABLE, "value": second_container.SHARED}
    has_pipe = f"test -p {second_container.SHARED}/{second_container.REQUESTS}/{second_container.PIPE}"
    second.update(
        {
            "image": spec.second_image,
            "command": ["/bin/sh", "-c", *_literal([second_container.AGENT])],
            "args": [],
            "startupProbe": {
                "exec": {"command": ["/bin/sh", "-c", has_pipe]},
                "periodSeconds": 1,
                "timeoutSeconds": 5,
                "failureThreshold": STARTUP_PROBES,
            },
            "resources": _resources(spec, gpus=False),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
    )
    second["env"] = [*_template_variables(second), {"name": "HOME", "value": "/tmp"}, shared]
    main["env"] = [*main["env"], shared]
    for container in (main, second):
        container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    body["volumes"] = [*body.get("volumes", ()), {"name": SHARED_VOLUME, "emptyDir": {}}]


def _add_storage(body: dict[str, Any], main: dict[str, Any], volume: Volume, *, fix_ownership: bool) -> None:
    """Mount a service's storage in the main container."""
    claim = {"claimName": volume.source, **({"readOnly": True} if volume.read_only else {})}
    body["volumes"] = [*body.get("volumes", ()), {"name": STORAGE_VOLUME, "persistentVolumeClaim": claim}]
    mount = {"name": STORAGE_VOLUME, "mountPath": volume.target}
    main["volumeMounts"] = [
        *main.get("volumeMounts", ()), {**mount, **({"readOnly": True} if volume.read_only else {})},
    ]  # fmt: skip
    if fix_ownership and not volume.read_only:
        owner = {
            "name": "ownership",
            "image": main["image"],
            "command": ["chown", f"{USER}:{USER}", volume.target],
            "resources": main["resources"],
            "securityContext": {
                "runAsNonRoot": False,
                "runAsUser": 0,
                "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE"]},
            },
            "volumeMounts": [mount],
        }
        body["initContainers"] = [owner, *body.get("initContainers", ())]


def _literal(words: list[str]) -> list[str]:
    """Return words that Kubernetes does not expand: it replaces ``$(NAME)`` and reads ``$$`` as ``$``."""
    return [word.replace("$", "$$") for word in words]


def _template_variables(main: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(main.get("env") or ())


def _constants(given: Mapping[str, str]) -> list[dict[str, str]]:
    constants = {"HOME": "/tmp", "PYTHONUNBUFFERED": "1", "AENV_HOST": "0.0.0.0", "AENV_PORT": str(PORT)}
    return [{"name": name, "value": value} for name, value in constants.items() if name not in given]


def _secret_variables(secret: str, names: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} for key in sorted(names)]


def _fetch_container(secret: str, spec: SandboxSpec, bundle: ServedBundle) -> dict[str, Any]:
    token = {"secretKeyRef": {"name": secret, "key": FETCH_TOKEN}}
    return {
        "name": FETCH,
        "image": bundle.base_image,
        "command": ["python3", "-m", "aenv.engines.kubernetes.bundle_fetch", bundle.url, bundle.digest, FETCH_FOLDER],
        "env": [{"name": "AENV_BUNDLE_TOKEN", "valueFrom": token}, {"name": "HOME", "value": "/tmp"}],
        # The same as the main container's: the scheduler reserves the larger of the two, not the sum.
        "resources": _resources(spec, gpus=False),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": FETCH, "mountPath": FETCH_FOLDER}],
    }


def _project_mounts() -> list[dict[str, Any]]:
    return [
        {"name": FETCH, "mountPath": PROJECT, "subPath": "project"},
        {"name": FETCH, "mountPath": SNAPSHOT, "subPath": "snapshot", "readOnly": True},
        {"name": FETCH, "mountPath": WITHHELD, "subPath": "withheld"},
    ]


def _resources(spec: SandboxSpec, *, gpus: bool = True) -> dict[str, Any]:
    devices = {GPU: str(spec.gpus)} if gpus and spec.gpus else {}
    return {
        "requests": {**_amounts(spec.requests or spec.limits), **devices},
        "limits": {**_amounts(spec.limits), **devices},
    }


def _amounts(amounts: Limits) -> dict[str, str]:
    return {
        "cpu": f"{max(1, round(amounts.cpus * 1000))}m",
        "memory": str(amounts.memory),
        "ephemeral-storage": str(amounts.disk),
    }


def secure(body: dict[str, Any]) -> None:
    """Fill in the pod's defaults, with what the Pod Security standard "restricted" requires."""
    body["restartPolicy"] = "Never"
    for key, value in {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
    }.items():
        body.setdefault(key, value)
    body["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
        **body.get("securityContext", {}),
    }
    for container in (*body.get("initContainers", ()), *body["containers"]):
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **container.get("securityContext", {}),
        }
    tolerated = {each.get("key") for each in body.get("tolerations", ())}
    missing = [key for key in ("not-ready", "unreachable") if f"node.kubernetes.io/{key}" not in tolerated]
    body["tolerations"] = [
        *body.get("tolerations", ()),
        *(
            {
                "key": f"node.kubernetes.io/{key}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": NODE_LOSS_SECONDS,
            }
            for key in missing
        ),
    ]


def check_image(image: str, setting: str) -> None:
    """Raise ConfigError if there is no base image for bundles. ``setting``: the name of the setting."""
    if not image:
        raise ConfigError(
            f"{setting} is not set: an environment without an image of its own runs on a base image, one with Python "
            "3.11 or later and this version of aenvironment"
        )
