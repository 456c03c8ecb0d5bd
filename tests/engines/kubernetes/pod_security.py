"""The Pod Security standard "restricted" (Kubernetes 1.37) as a function, for clusters and tests without admission.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip
SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}


def violations(pod: dict[str, Any]) -> list[str]:
    """Return each rule that the pod breaks, with the place."""
    return list(_violations(pod["spec"]))


def _violations(spec: dict[str, Any]) -> Iterator[str]:
    pod = spec.get("securityContext") or {}
    yield from (f"spec.{key}: must not be true" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key))
    for volume in spec.get("volumes", ()):
        yield from (f"volume {volume['name']}: {kind} is not allowed" for kind in set(volume) - VOLUMES - {"name"})
    yield from (f"sysctl {each['name']}" for each in pod.get("sysctls", ()) if each["name"] not in SYSCTLS)
    yield from _context_violations("spec", pod)
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind, ()):
            yield from _container_violations(f"{kind} {container['name']}", container, pod)


def _container_violations(place: str, container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    own = container.get("securityContext") or {}
    yield from _context_violations(place, own)
    yield from (f"{place}: hostPort" for port in container.get("ports", ()) if port.get("hostPort"))
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        for way in ("httpGet", "tcpSocket"):
            if (container.get(probe) or {}).get(way, {}).get("host"):
                yield f"{place}: {probe} names a host"
    if own.get("privileged"):
        yield f"{place}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{place}: allowPrivilegeEscalation must be false"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield f"{place}: capabilities.drop must have ALL"
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield f"{place}: capabilities.add"
    if own.get("procMount") not in (None, "Default"):
        yield f"{place}: procMount"
    if not own.get("runAsNonRoot", pod.get("runAsNonRoot")):
        yield f"{place}: runAsNonRoot must be true"
    profile = own.get("seccompProfile") or pod.get("seccompProfile") or {}
    if profile.get("type") not in ("RuntimeDefault", "Localhost"):
        yield f"{place}: seccompProfile must be RuntimeDefault or Localhost"


def _context_violations(place: str, context: dict[str, Any]) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield f"{place}: runAsUser must not be 0"
    if context.get("runAsNonRoot") is False:
        yield f"{place}: runAsNonRoot must not be false"
    if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
        yield f"{place}: seccompProfile must not be Unconfined"
    if (context.get("appArmorProfile") or {}).get("type", "RuntimeDefault") not in ("RuntimeDefault", "Localhost"):
        yield f"{place}: appArmorProfile"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{place}: hostProcess"
    selinux = context.get("seLinuxOptions") or {}
    if selinux.get("type") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{place}: seLinuxOptions"
