"""Settings of the Kubernetes engine, from variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from aenv.errors import ConfigError

CONFIG_MAP = "configmap:"


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

    @classmethod
    def from_environment(cls) -> Self:
        """Read the settings.

        Raises:
            ConfigError: one is invalid.
        """
        wait = os.environ.get("AENV_KUBERNETES_UNSCHEDULABLE_SECONDS") or "10"
        try:
            seconds = float(wait)
        except ValueError:
            raise ConfigError(f"AENV_KUBERNETES_UNSCHEDULABLE_SECONDS: '{wait}' is not a number") from None
        found = cls(
            namespace=os.environ.get("AENV_KUBERNETES_NAMESPACE", ""),
            context=os.environ.get("AENV_KUBERNETES_CONTEXT", ""),
            image=os.environ.get("AENV_KUBERNETES_IMAGE", ""),
            templates=os.environ.get("AENV_KUBERNETES_TEMPLATES", ""),
            owner=os.environ.get("AENV_KUBERNETES_OWNER", ""),
            bundle_address=os.environ.get("AENV_KUBERNETES_BUNDLE_ADDRESS", ""),
            unschedulable_seconds=seconds,
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
