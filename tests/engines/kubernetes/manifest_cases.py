"""Requests whose manifests are kept in ``golden/``. ``python -m tests.engines.kubernetes.manifest_cases`` writes them.

Review the difference before you commit it: it is what users' clusters will see.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aenv.engines.base import SandboxSpec
from aenv.engines.kubernetes.host_manifest import host_objects, host_policy
from aenv.engines.kubernetes.pod_manifest import Owner, ServedBundle, instance_objects, network_policy, storage_claim
from aenv.engines.kubernetes.pod_templates import PodTemplates
from aenv.engines.packed.host_placement import HostSize
from aenv.engines.packed.packed_hosts import HostGroup, HostLimits
from aenv.isolation.files.volumes import Volume
from aenv.isolation.limits.cgroups import Limits
from aenv.isolation.network.policy import Network

GOLDEN = Path(__file__).parent / "golden"
OWNER = Owner("aenv-0123456789", "7c6f5a1e-0000-4000-8000-000000000001")
BUNDLE = ServedBundle("http://10.0.0.5:8090/bundles/0f1e", "sha256:0f1e", "fetch-token", "example.com/aenv:1.0.0", True)
PROJECT = Path("/srv/projects/wordle")
NODES_TEMPLATE = """
apiVersion: v1
kind: Pod
metadata:
  labels: {team: rl, aenv/name: not-this}
  annotations: {example.com/note: from the template}
spec:
  runtimeClassName: gvisor
  nodeSelector: {pool: agents}
  imagePullSecrets: [{name: registry}]
  tolerations: [{key: agents, operator: Exists, effect: NoSchedule}]
  affinity:
    nodeAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - {weight: 1, preference: {matchExpressions: [{key: disk, operator: In, values: [fast]}]}}
  volumes: [{name: data, emptyDir: {}}]
  containers:
    - name: log-shipper
      image: example.com/shipper:3
    - name: main
      env: [{name: FROM_TEMPLATE, value: "1"}]
      volumeMounts: [{name: data, mountPath: /data}]
"""


HOST_TEMPLATE = """
apiVersion: v1
kind: Pod
spec:
  nodeSelector: {pool: hosts}
  terminationGracePeriodSeconds: 60
  containers:
    - name: main
      resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: "8", memory: 32Gi}}
"""


def objects_of(spec: SandboxSpec, bundle: ServedBundle | None, templates: PodTemplates | None = None) -> dict[str, Any]:
    """Return Secret and Pod of a request, with a fixed name and token."""
    template = (templates or PodTemplates()).find(spec.template)
    made = instance_objects("wordle-1a2b3c", spec, "token", template=template, owner=OWNER, bundle=bundle)
    return {"secret": made.secret, "pod": made.pod}


def bundle_case() -> dict[str, Any]:
    spec = SandboxSpec(
        "wordle@1.2.0", PROJECT, PROJECT / "src", {"WORDS": "en", "AENV_OWNER": "ana"}, ["--hard", "$(HOME)"],
        labels={"experiment": "run-7", "seed": "3"}, ttl="30m",
    )  # fmt: skip
    return objects_of(spec, BUNDLE)


def image_case() -> dict[str, Any]:
    spec = SandboxSpec(
        "wordle@1.2.0", PROJECT, PROJECT, {}, ["--hard"], Limits(memory=4 << 30, cpus=2.5, disk=10 << 30),
        Network("host"), gpus=2, image="registry.example.com/team/wordle:1.2.0",
        requests=Limits(memory=2 << 30, cpus=0.5, disk=5 << 30),
    )  # fmt: skip
    return objects_of(spec, None)


def odd_labels_case() -> dict[str, Any]:
    spec = SandboxSpec(
        "wordle@1.2.0+build", PROJECT, PROJECT, {"AENV_OWNER": "ana.müller@example.com"},
        labels={"experiment": "lr 3e-4 / seed 1", "a/key with spaces": "x" * 80, "empty": ""},
    )  # fmt: skip
    return objects_of(spec, BUNDLE)


def template_case() -> dict[str, Any]:
    spec = SandboxSpec("wordle@1.2.0", PROJECT, PROJECT, template="AgentNodes")
    return objects_of(spec, BUNDLE, PodTemplates({"agentNodes.yaml": NODES_TEMPLATE}))


def dual_case() -> dict[str, Any]:
    spec = SandboxSpec("swe@1.0.0", PROJECT, PROJECT, {"AENV_DATASOURCE": "astropy"}, template="dualContainer",
                       second_image="registry.example.com/swe:astropy")  # fmt: skip
    return objects_of(spec, BUNDLE)


def storage_case() -> dict[str, Any]:
    spec = SandboxSpec("wordle@1.2.0", PROJECT, PROJECT, volume=Volume("notes-1a2b3c", "/data"))
    return {**objects_of(spec, BUNDLE), "claim": storage_claim("notes-1a2b3c", "notes", 1 << 30, "fast")}


def host_case(group: HostGroup, template: str = "") -> dict[str, Any]:
    templates = PodTemplates({"packedHost.yaml": template} if template else {})
    made = host_objects(
        "aenv-host-1a2b3c", "token", group, template=templates.host(), owner=OWNER, image="example.com/aenv:1.0.0",
        isolation="confined", limits=HostLimits(HostSize(100, 4 << 30)), cpus=2.0,
    )  # fmt: skip
    return {"secret": made.secret, "pod": made.pod}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "bundle": bundle_case,
    "image": image_case,
    "odd-labels": odd_labels_case,
    "template": template_case,
    "dual": dual_case,
    "storage": storage_case,
    "host": lambda: host_case(HostGroup("ana@example.com", False)),
    "host-template": lambda: host_case(HostGroup("", True), HOST_TEMPLATE),
    "host-policy": lambda: host_policy(OWNER),
    "network-policy": lambda: network_policy(OWNER, "10.0.0.5", 8090),
    "network-policy-by-name": lambda: network_policy(OWNER, None, 8090),
}


def as_text(manifest: dict[str, Any]) -> str:
    """Return a manifest as it is kept in a file."""
    return json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all golden files."""
    GOLDEN.mkdir(exist_ok=True)
    for name, make in CASES.items():
        (GOLDEN / f"{name}.json").write_text(as_text(make()), encoding="utf-8")


if __name__ == "__main__":
    main()
