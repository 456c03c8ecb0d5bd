"""The manifests of the Kubernetes engine, without a cluster."""

from __future__ import annotations

import base64
import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.engines.base import SandboxSpec
from aenv.engines.kubernetes import pod_labels
from aenv.engines.kubernetes.pod_manifest import check_image
from aenv.engines.kubernetes.pod_templates import PodTemplates
from aenv.errors import ConfigError, UsageError
from tests.engines.kubernetes.manifest_cases import BUNDLE, CASES, GOLDEN, PROJECT, as_text, objects_of
from tests.engines.kubernetes.pod_security import violations

VALID_LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
INSTANCES = ("bundle", "dual", "image", "odd-labels")


@pytest.mark.parametrize("name", CASES)
def test_a_manifest_is_the_golden_one(name: str) -> None:
    assert as_text(CASES[name]()) == (GOLDEN / f"{name}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*INSTANCES, "template", "storage", "host", "host-template"])
def test_a_pod_passes_the_restricted_standard(name: str) -> None:
    assert violations(CASES[name]()["pod"]) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("hostNetwork",), True),
        (("volumes",), [{"name": "run", "hostPath": {"path": "/run"}}]),
        (("securityContext", "runAsUser"), 0),
        (("securityContext", "seccompProfile"), {"type": "Unconfined"}),
        (("containers", 0, "securityContext", "privileged"), True),
        (("containers", 0, "securityContext", "allowPrivilegeEscalation"), True),
        (("containers", 0, "securityContext", "capabilities"), {"drop": ["NET_RAW"]}),
        (("containers", 0, "securityContext", "capabilities"), {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        (("initContainers", 0, "securityContext", "runAsNonRoot"), False),
        (("containers", 0, "ports"), [{"containerPort": 80, "hostPort": 80}]),
    ],
)
def test_the_rule_checker_finds_a_broken_rule(path: tuple[str | int, ...], value: object) -> None:
    pod = copy.deepcopy(CASES["bundle"]()["pod"])
    place: Any = pod["spec"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert violations(pod)


@pytest.mark.parametrize("name", [*INSTANCES, "host"])
def test_a_pod_has_no_rights_in_the_cluster_and_no_secret_in_its_manifest(name: str) -> None:
    case = CASES[name]()
    assert case["pod"]["spec"]["automountServiceAccountToken"] is False
    values = [base64.b64decode(value).decode() for value in case["secret"]["data"].values()]
    assert "token" in values
    given = [each.get("value") for each in case["pod"]["spec"]["containers"][0]["env"]]
    assert not set(values) & set(given)


def test_a_request_is_no_larger_than_its_limit_and_both_have_the_devices() -> None:
    amounts = CASES["image"]()["pod"]["spec"]["containers"][0]["resources"]
    assert amounts["requests"]["cpu"] == "500m"
    assert amounts["limits"]["cpu"] == "2500m"
    assert amounts["requests"]["nvidia.com/gpu"] == amounts["limits"]["nvidia.com/gpu"] == "2"


def test_an_invalid_variable_name_is_refused() -> None:
    with pytest.raises(UsageError, match="A-B"):
        objects_of(SandboxSpec("wordle@1", PROJECT, PROJECT, {"A-B": "1"}), BUNDLE)


def test_code_in_a_file_of_the_project_is_loaded_from_there() -> None:
    spec = SandboxSpec("wordle@1", PROJECT, PROJECT / "deep" / "env.py")
    pod = objects_of(spec, replace(BUNDLE, has_private=False))["pod"]
    command = pod["spec"]["containers"][0]["command"]
    assert command[3] == "/app/deep/env.py"
    assert command[command.index("--withheld") + 1] == ""


def test_a_bundle_without_a_base_image_is_refused_by_the_name_of_the_setting() -> None:
    check_image("example.com/aenv:1", "AENV_KUBERNETES_IMAGE")
    with pytest.raises(ConfigError, match="AENV_KUBERNETES_IMAGE"):
        check_image("", "AENV_KUBERNETES_IMAGE")


# --- labels


@given(st.text())
def test_any_text_becomes_a_valid_label(text: str) -> None:
    value = pod_labels.label_value(text)
    assert len(value) <= 63
    assert VALID_LABEL.fullmatch(value)


@given(st.text(), st.text())
def test_two_texts_never_share_a_label(one: str, other: str) -> None:
    assert (pod_labels.label_value(one) == pod_labels.label_value(other)) == (one == other)


@given(st.text())
def test_a_pod_name_is_a_dns_label(environment: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", pod_labels.pod_name(environment))


def test_a_caller_cannot_take_the_place_of_a_label_of_the_engine() -> None:
    labels = pod_labels.labels_of("wordle@1", engine="aenv-1", user={"aenv/engine": "theirs", "engine": "theirs"})
    assert labels["aenv/engine"] == "aenv-1"


# --- templates


def test_an_unknown_template_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"'gpus'; this platform has: big, dualContainer, singleContainer"):
        PodTemplates({"big.yaml": MINIMAL}).find("gpus")


def test_template_names_ignore_case_and_other_files_are_ignored() -> None:
    templates = PodTemplates({"Big.yml": MINIMAL, "README.md": "not a template"})
    assert templates.find("big") == templates.find("BIG")
    assert templates.names == ["Big", "dualContainer", "singleContainer"]


def test_templates_are_read_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_text(MINIMAL)
    assert PodTemplates.in_folder(tmp_path).names == ["big", "dualContainer", "singleContainer"]
    with pytest.raises(ConfigError, match="cannot be read"):
        PodTemplates.in_folder(tmp_path / "missing")


def test_a_template_is_not_changed_by_its_use() -> None:
    templates = PodTemplates({"big.yaml": MINIMAL})
    before = copy.deepcopy(templates.find("big"))
    objects_of(SandboxSpec("wordle@1", PROJECT, PROJECT, template="big"), BUNDLE, templates)
    assert templates.find("big") == before


MINIMAL = "{apiVersion: v1, kind: Pod, spec: {containers: [{name: main}]}}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "invalid YAML"),
        ("[]", "kind Pod"),
        ("{apiVersion: apps/v1, kind: Deployment}", "kind Pod"),
        ("{apiVersion: v1, kind: Pod, spec: {containers: []}}", "'main'"),
        ("{apiVersion: v1, kind: Pod, spec: {containers: [main]}}", "list of containers"),
        ("{apiVersion: v1, kind: Pod}", "spec is missing"),
        ("{apiVersion: v1, kind: Pod, status: {}, spec: {containers: [{name: main}]}}", "unknown key 'status'"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: main}]}}", "names and the"),
        ("{apiVersion: v1, kind: Pod, spec: {restartPolicy: Always, containers: [{name: main}]}}", "restartPolicy"),
    ],
)
def test_an_invalid_template_is_refused_with_its_file_and_problem(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=r"odd\.yaml") as caught:
        PodTemplates({"odd.yaml": text})
    assert problem in caught.value.message


def test_a_second_container_needs_an_image_and_a_place_in_the_template() -> None:
    with pytest.raises(UsageError, match="needs a datasource"):
        objects_of(SandboxSpec("swe@1.0.0", PROJECT, PROJECT, template="dualContainer"), BUNDLE)
    with pytest.raises(ConfigError, match="one container must be called 'second'"):
        PodTemplates({"DualContainer.yaml": MINIMAL})


def test_the_second_container_gets_none_of_the_instances_variables() -> None:
    pod = CASES["dual"]()["pod"]
    main, second = pod["spec"]["containers"]
    assert "AENV_TOKEN" in {each["name"] for each in main["env"]}
    assert {each["name"] for each in second["env"]} == {"HOME", "AENV_SHARED"}
    assert not any("valueFrom" in each for each in second["env"])
    assert second["image"] == "registry.example.com/swe:astropy"


def test_a_host_of_a_tenant_says_whose_it_is_and_its_template_cannot_be_chosen() -> None:
    about = CASES["host"]()["pod"]["metadata"]
    assert about["annotations"]["aenv/tenant"] == "ana@example.com"
    assert about["labels"]["aenv/host"] == "closed"
    assert CASES["host-template"]()["pod"]["metadata"]["labels"]["aenv/host"] == "open"
    with pytest.raises(ConfigError, match="unknown podTemplate 'packedHost'; this platform has: dualContainer, single"):
        PodTemplates().find("packedHost")
