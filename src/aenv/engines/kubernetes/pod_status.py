"""Read a pod's status: whether its instance runs, why it did not start, how it ended.

Pure functions over the pod's JSON. The order matters: what the cluster did to the pod (deletion, eviction) explains an
exit code, and not the other way round, since the kubelet ends containers with the same signals as a program could.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aenv.engines.exits import Exit, classify
from aenv.engines.kubernetes.pod_templates import MAIN, SECOND
from aenv.errors import CapacityExhausted, EnvironmentError, ImageUnavailable, LoadError, Unavailable
from aenv.schema.exit_codes import STOPPED_BY_SIGNAL

Pod = dict[str, Any]

IMAGE_REASONS = frozenset(
    (
        "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
        "RegistryUnavailable", "SignatureValidationFailed",
    )
)  # fmt: skip
CONTAINER_REASONS = frozenset(("CreateContainerConfigError", "CreateContainerError", "RunContainerError"))
_TRANSIENT = "failed to sync "
"""Begin of a message for which the kubelet tries again: a busy one has not yet read the pod's Secret."""
_OWN_STORAGE = (
    "ephemeral local storage usage exceeds",
    "ephemeral-storage usage exceeds",
    "exceeded its local",
    "EmptyDir",
)
"""Parts of an eviction's message that say that the pod has used more storage than its own limit."""


def name_of(pod: Pod) -> str:
    """Return the pod's name."""
    return str(pod["metadata"]["name"])


def is_ready(pod: Pod) -> bool:
    """Return whether the environment has answered the kubelet's probe.

    The condition Ready says the same a second later.
    """
    running = [each for each in _status(pod).get("containerStatuses") or () if each["name"] in (MAIN, SECOND)]
    return bool(_status(pod).get("podIP")) and bool(running) and all(each.get("started") for each in running)


def is_idle(pod: Pod | None) -> bool:
    """Return whether no container of the pod runs, so that there is nothing to end gracefully."""
    return pod is not None and not any("running" in (each.get("state") or {}) for each in _containers(pod))


def is_gone(pod: Pod | None) -> bool:
    """Return whether nothing of a pod runs any more, after its deletion. The object may be there a bit longer."""
    if pod is None:
        return True
    running = _status(pod).get("containerStatuses") or ()
    ended = bool(running) and all((each.get("state") or {}).get("terminated") for each in running)
    return ended and bool(pod["metadata"].get("deletionTimestamp"))


def is_placed(pod: Pod) -> bool:
    """Return whether the pod has a node, or will not get one any more."""
    return bool((pod.get("spec") or {}).get("nodeName") or start_problem(pod))


def unschedulable(pod: Pod | None) -> str | None:
    """Return why no node can take the pod now, in the scheduler's words; None if one can."""
    found = _condition(pod, "PodScheduled") if pod is not None else None
    if found and found.get("status") == "False" and found.get("reason") == "Unschedulable":
        return str(found.get("message") or "no node can take it")
    return None


def start_problem(pod: Pod | None) -> EnvironmentError | None:
    """Return the error of a start that cannot succeed any more; None if it still can.

    The error of a container that has ended is preliminary: its output says more, see `ended_container`.
    """
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return Unavailable("the pod was deleted from outside while it started")
    for container in _containers(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason"), waiting.get("message") or ""
        if reason in IMAGE_REASONS:
            return ImageUnavailable(f"image {container.get('image')}: {reason}: {message}".rstrip(": "))
        if reason in CONTAINER_REASONS and not message.startswith(_TRANSIENT):
            return Unavailable(f"container {container['name']} cannot be started: {reason}: {message}")
    status = _status(pod)
    if status.get("reason"):  # evicted, or refused by the kubelet
        return CapacityExhausted(f"the node did not run the pod: {status['reason']}: {status.get('message', '')}")
    ended = ended_container(pod)
    if ended is None:
        return None
    name, code, reason = ended
    if reason == "OOMKilled":
        return LoadError("the environment used more than its memory limit while it started")
    if name == SECOND:
        return Unavailable(f"the second container ended with exit code {code}: its image needs /bin/sh and mkfifo")
    if name != MAIN:
        return Unavailable(f"init container {name} ended with exit code {code}")
    return LoadError(f"the environment's process ended with exit code {code}")


def ended_container(pod: Pod) -> tuple[str, int, str] | None:
    """Return name, exit code and reason of a container whose end ends the instance: main, the second, or an init that
    failed.
    """
    for container in _containers(pod):
        ended = (container.get("state") or {}).get("terminated")
        if ended is not None and (container["name"] in (MAIN, SECOND) or ended.get("exitCode")):
            return container["name"], int(ended.get("exitCode", -1)), str(ended.get("reason") or "")
    return None


def exit_of(pod: Pod | None) -> Exit | None:
    """Return how the instance ended; None while it is alive. ``pod``: None if it is gone."""
    if pod is None:
        return Exit(-1, "the pod is gone: it was deleted from outside, or its node was removed", "killed")
    metadata, status = pod["metadata"], _status(pod)
    reason, message = status.get("reason") or "", status.get("message") or ""
    if reason == "Evicted" and any(words in message for words in _OWN_STORAGE):
        return Exit(-1, f"out of storage: {message}", "out_of_storage")
    if reason:
        return Exit(-1, f"ended by the cluster: {reason}: {message}".rstrip(": "), "killed")
    disruption = _condition(pod, "DisruptionTarget")
    if disruption and disruption.get("status") == "True":
        why = f"{disruption.get('reason')}: {disruption.get('message') or ''}".rstrip(": ")
        return Exit(-1, f"ended by the cluster: {why}", "killed")
    if metadata.get("deletionTimestamp"):
        return Exit(-1, "the pod was deleted from outside", "killed")
    ended = ended_container(pod)
    if ended is not None and ended[0] in (MAIN, SECOND):
        which, code, why = ended
        if which == SECOND and why != "OOMKilled":
            return Exit(code, f"the second container ended with exit code {code}", "signalled")
        if code > 128 and code != STOPPED_BY_SIGNAL:
            code = 128 - code  # the number of a signal, negative
        return classify(-9 if why == "OOMKilled" else code, out_of_memory=why == "OOMKilled")
    if status.get("phase") in ("Succeeded", "Failed"):
        return Exit(-1, "the pod ended, and the cluster does not say why", "lost")
    if _node_lost(pod):
        node = (pod.get("spec") or {}).get("nodeName")
        return Exit(-1, f"node {node} does not answer any more", "lost")
    return None


def _node_lost(pod: Pod) -> bool:
    """Return whether the node's controller has given the pod up.

    It sets Ready to False while the last word of the kubelet was that all containers are ready.
    """
    if (pod.get("spec") or {}).get("readinessGates"):
        return False
    ready, containers = _condition(pod, "Ready") or {}, _condition(pod, "ContainersReady") or {}
    return ready.get("status") == "False" and containers.get("status") == "True"


def _status(pod: Pod) -> dict[str, Any]:
    return pod.get("status") or {}


def _containers(pod: Pod) -> Iterator[dict[str, Any]]:
    yield from _status(pod).get("initContainerStatuses") or ()
    yield from _status(pod).get("containerStatuses") or ()


def _condition(pod: Pod, kind: str) -> dict[str, Any] | None:
    return next((each for each in _status(pod).get("conditions") or () if each.get("type") == kind), None)
