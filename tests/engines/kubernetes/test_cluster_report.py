"""``aenv cluster doctor`` without a cluster, and the rights that it asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from aenv.cli.main import main
from aenv.engines.kubernetes.cluster_report import RIGHTS

ROLE = Path(__file__).parents[3] / "deploy" / "kubernetes"


def test_without_a_configured_cluster_the_doctor_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main(["cluster", "doctor", "--output", "json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["works"] is False
    assert "no connection to a Kubernetes cluster is configured" in found["findings"][0]["said"]


def test_the_doctor_asks_for_the_rights_that_the_manifests_give() -> None:
    roles = [
        document
        for file in sorted(ROLE.glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
        if document and document.get("kind") == "Role"
    ]
    given = {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {(group, resource, verb) for group, resource, verbs in RIGHTS for verb in verbs} == given
