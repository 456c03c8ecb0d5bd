"""Settings of the Kubernetes engine, from variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar, get_args

from aenv.engines.base import EngineOptions
from aenv.engines.packed.host_placement import HostSize
from aenv.engines.packed.packed_hosts import HostLimits
from aenv.errors import AEnvError, ConfigError
from aenv.schema import quantities

CONFIG_MAP = "configmap:"
Packing = Literal["auto", "packed", "pods"]
HOST_MEMORY = 4 << 30
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Decisions of the administrator."""

    namespace: str = ""
    """Namespace of all instances. Empty: that of the kubeconfig's context, or of this pod."""
    context: str = ""
    """Context of the kubeconfig. Empty: the current one."""
    image: str = ""
    """Base image for environments without one: Python 3.11 or later, and this version of aenvironment."""
    templates: str = ""
    """Pod templates: a folder, or ``configmap:NAME``. Empty: only the built-in one."""
    owner: str = ""
    """ConfigMap that owns all objects of instances: with it, Kubernetes deletes them. Empty: none."""
    bundle_address: str = ""
    """``HOST`` or ``HOST:PORT`` at which pods reach this process. Empty: the address towards the API server."""
    unschedulable_seconds: float = 10.0
    """How long a start waits while no node has room, for a cluster that adds nodes by itself."""
    storage_class: str = ""
    """StorageClass of services' storages. Empty: the cluster's default."""
    fix_ownership: bool = False
    """Give storages to the user of instances by an init container that runs as root, for volumes that ignore
    ``fsGroup``."""
    packing: Packing = "auto"
    """``packed``: environments without an image run many to a host pod. ``pods``: each in a pod of its own. ``auto``:
    packed, if the platform's settings name an isolation level that host pods can give."""
    hosts: HostLimits = field(default_factory=lambda: HostLimits(HostSize(instances=100, memory=HOST_MEMORY)))
    """How many hosts there may be, and how many instances on each."""
    host_cpus: float = 2.0
    """CPUs of a host pod, reserved and at most, unless the template ``packedHost`` says otherwise."""

    @classmethod
    def from_environment(cls) -> Self:
        """Read the settings.

        Raises:
            ConfigError: one is invalid.
        """
        found = cls(
            namespace=os.environ.get("AENV_KUBERNETES_NAMESPACE", ""),
            context=os.environ.get("AENV_KUBERNETES_CONTEXT", ""),
            image=os.environ.get("AENV_KUBERNETES_IMAGE", ""),
            templates=os.environ.get("AENV_KUBERNETES_TEMPLATES", ""),
            owner=os.environ.get("AENV_KUBERNETES_OWNER", ""),
            bundle_address=os.environ.get("AENV_KUBERNETES_BUNDLE_ADDRESS", ""),
            unschedulable_seconds=_read("AENV_KUBERNETES_UNSCHEDULABLE_SECONDS", 10.0, float, "a number"),
            storage_class=os.environ.get("AENV_KUBERNETES_STORAGE_CLASS", ""),
            fix_ownership=_read("AENV_KUBERNETES_FIX_OWNERSHIP", False, _boolean, "true or false"),
            packing=_read("AENV_KUBERNETES_PACKING", "auto", _packing, f"one of {', '.join(get_args(Packing))}"),
            hosts=_host_limits(),
            host_cpus=_read(
                "AENV_KUBERNETES_HOST_CPU", 2.0, lambda text: quantities.millicores(text) / 1000, "CPUs, like 2 or 500m"
            ),
        )
        found.bundle_host_and_port()
        return found

    def bundle_host_and_port(self) -> tuple[str, int]:
        """Return host and port of `bundle_address`; the port is 0 if it has none.

        Raises:
            ConfigError: it is invalid.
        """
        host, separator, port = self.bundle_address.rpartition(":")
        if not separator or self.bundle_address.endswith("]") or (host.count(":") and not host.endswith("]")):
            host, port = self.bundle_address, "0"
        if not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"AENV_KUBERNETES_BUNDLE_ADDRESS: '{self.bundle_address}' is not HOST or HOST:PORT")
        return host.strip("[]"), int(port)


def host_level(settings: KubernetesSettings, options: EngineOptions) -> str:
    """Return the isolation level of instances in host pods; empty if each instance gets a pod of its own.

    A host pod can give namespaces only if the cluster lets it, so they are not assumed.
    """
    if settings.packing == "pods" or (settings.packing == "auto" and options.isolation == "namespaces"):
        return ""
    return options.isolation


def _host_limits() -> HostLimits:
    size = HostSize(
        _read("AENV_KUBERNETES_HOST_INSTANCES", 100, _positive, "a number of at least 1"),
        _read("AENV_KUBERNETES_HOST_MEMORY", HOST_MEMORY, quantities.size, "a size like 4Gi"),
    )
    return HostLimits(
        size,
        hosts=_read("AENV_KUBERNETES_HOSTS", 20, _positive, "a number of at least 1"),
        idle_seconds=_read("AENV_KUBERNETES_HOST_IDLE_SECONDS", 300.0, float, "a number"),
        reserve=_read("AENV_KUBERNETES_HOST_RESERVE", 64 << 20, quantities.size, "a size like 64Mi"),
        wait_seconds=_read("AENV_KUBERNETES_UNSCHEDULABLE_SECONDS", 10.0, float, "a number"),
        share=_read("AENV_KUBERNETES_SHARE_HOSTS", False, _boolean, "true or false"),
    )


def _read(name: str, default: T, parse: Callable[[str], T], expected: str) -> T:
    """Return the setting of that name.

    Raises:
        ConfigError: it is invalid.
    """
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return parse(text)
    except (ValueError, KeyError, AEnvError):
        raise ConfigError(f"{name}: '{text}' is not {expected}") from None


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def _packing(text: str) -> Any:
    if text not in get_args(Packing):
        raise ValueError(text)
    return text


def _boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
