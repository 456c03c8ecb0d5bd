"""What the status of a pod says about an instance."""

from __future__ import annotations

from typing import Any

import pytest

from aenv.engines.kubernetes import pod_status
from aenv.errors import AEnvError, CapacityExhausted, ImageUnavailable, LoadError, Unavailable
from aenv.schema.exit_codes import STOPPED_BY_SIGNAL


def pod(*containers: dict[str, Any], deleted: bool = False, node: str = "node1", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": list(containers), **status},
    }


def container(name: str = "main", **state: Any) -> dict[str, Any]:
    return {"name": name, "image": "example.com/env:1", "state": state}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return container(terminated={"exitCode": code, "reason": reason})


def condition(kind: str, status: str, **more: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, **more}]}


NODE_LOST = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
RUNNING = {**container(running={}), "started": True, "ready": True}


@pytest.mark.parametrize(
    ("found", "cause", "fault", "words"),
    [
        (pod(ended(137, "OOMKilled")), "out_of_memory", "policy", "memory limit"),
        (pod(ended(137)), "killed", "infra", "outside"),
        (pod(ended(139)), "crashed", "env", "SIGSEGV"),
        (pod(ended(3)), "exited", "env", "exit code 3"),
        (pod(ended(0, "Completed")), "exited", "env", "exit code 0"),
        (pod(ended(STOPPED_BY_SIGNAL)), "signalled", "policy", "signal to stop"),
        (pod(ended(STOPPED_BY_SIGNAL), deleted=True), "killed", "infra", "deleted from outside"),
        (pod(RUNNING, deleted=True), "killed", "infra", "deleted from outside"),
        (None, "killed", "infra", "gone"),
        (
            pod(ended(137), reason="Evicted", message="The node was low on resource: memory."),
            "killed", "infra", "low on resource",
        ),
        (
            pod(reason="Evicted", message="Pod ephemeral local storage usage exceeds the total limit 1Gi."),
            "out_of_storage", "policy", "out of storage",
        ),
        (pod(ended(143), reason="Shutdown", message="Node is shutting down"), "killed", "infra", "Shutdown"),
        (
            pod(RUNNING, deleted=True, **condition("DisruptionTarget", "True", reason="PreemptionByScheduler")),
            "killed", "infra", "PreemptionByScheduler",
        ),
        (pod(RUNNING, conditions=NODE_LOST), "lost", "infra", "node1 does not answer"),
        (pod(phase="Failed"), "lost", "infra", "does not say why"),
    ],
)  # fmt: skip
def test_an_end_has_its_cause_and_its_fault(found: dict[str, Any] | None, cause: str, fault: str, words: str) -> None:
    exit_ = pod_status.exit_of(found)
    assert exit_ is not None
    assert (exit_.cause, exit_.fault) == (cause, fault)
    assert words in exit_.reason


def test_a_running_pod_has_not_ended() -> None:
    found = pod(RUNNING, **condition("Ready", "True"))
    assert pod_status.exit_of(found) is None
    assert pod_status.is_ready(found)
    assert pod_status.start_problem(found) is None


def test_a_sidecar_that_is_not_ready_ends_nothing() -> None:
    conditions = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "False"}]
    assert pod_status.exit_of(pod(RUNNING, container("sidecar", running={}), conditions=conditions)) is None


@pytest.mark.parametrize(
    ("found", "error", "words"),
    [
        (pod(container(waiting={"reason": "ErrImagePull", "message": "not found"})), ImageUnavailable, "env:1"),
        (pod(container(waiting={"reason": "InvalidImageName"})), ImageUnavailable, "InvalidImageName"),
        (pod(container(waiting={"reason": "CreateContainerConfigError", "message": "no"})), Unavailable, "ConfigError"),
        (pod(reason="OutOfcpu", message="Node didn't have enough resource"), CapacityExhausted, "OutOfcpu"),
        (pod(ended(137, "OOMKilled")), LoadError, "memory limit"),
        (pod(ended(4)), LoadError, "exit code 4"),
        (pod(initContainerStatuses=[{**ended(1), "name": "bundle"}]), Unavailable, "bundle"),
        (pod(RUNNING, deleted=True), Unavailable, "deleted from outside"),
        (None, Unavailable, "deleted from outside"),
    ],
)
def test_a_start_that_cannot_succeed_has_its_error(
    found: dict[str, Any] | None, error: type[AEnvError], words: str
) -> None:
    problem = pod_status.start_problem(found)
    assert type(problem) is error
    assert words in problem.message


@pytest.mark.parametrize(
    "found",
    [
        pod(),
        pod(container(waiting={"reason": "ContainerCreating"})),
        pod(container(waiting={"reason": "CreateContainerConfigError", "message": "failed to sync secret cache"})),
        pod(container(waiting={"reason": "PodInitializing"}), initContainerStatuses=[container("bundle", running={})]),
        pod(container(running={}), initContainerStatuses=[{**ended(0), "name": "bundle"}]),
    ],
)
def test_a_start_that_is_under_way_is_neither_ready_nor_failed(found: dict[str, Any]) -> None:
    assert pod_status.start_problem(found) is None
    assert not pod_status.is_ready(found)


def test_a_pod_that_no_node_can_take_has_the_schedulers_reason() -> None:
    found = pod(node="", **condition("PodScheduled", "False", reason="Unschedulable", message="Insufficient cpu"))
    assert pod_status.unschedulable(found) == "Insufficient cpu"
    assert not pod_status.is_placed(found)
    assert pod_status.unschedulable(pod()) is None
    assert pod_status.is_placed(pod())


def test_a_deleted_pod_is_gone_once_its_containers_have_ended() -> None:
    assert not pod_status.is_gone(pod(RUNNING, deleted=True))
    assert not pod_status.is_gone(pod(ended(0)))
    assert pod_status.is_gone(pod(ended(0), deleted=True))
    assert pod_status.is_gone(None)
