"""Settings of the Kubernetes engine."""

from __future__ import annotations

from typing import Any

import pytest

from aenv.engines.base import EngineOptions
from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings, host_level
from aenv.engines.packed.host_placement import HostSize
from aenv.engines.packed.packed_hosts import HostLimits
from aenv.errors import ConfigError


def test_settings_are_read_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_KUBERNETES_NAMESPACE", "agents")
    monkeypatch.setenv("AENV_KUBERNETES_UNSCHEDULABLE_SECONDS", "60")
    found = KubernetesSettings.from_environment()
    assert (found.namespace, found.unschedulable_seconds, found.image) == ("agents", 60.0, "")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ("", 0)),
        ("10.0.0.5", ("10.0.0.5", 0)),
        ("platform.example.com:8090", ("platform.example.com", 8090)),
        ("[fd00::1]:8090", ("fd00::1", 8090)),
        ("[fd00::1]", ("fd00::1", 0)),
        ("fd00::1", ("fd00::1", 0)),
    ],
)
def test_the_bundle_address_has_a_host_and_maybe_a_port(text: str, address: tuple[str, int]) -> None:
    assert KubernetesSettings(bundle_address=text).bundle_host_and_port() == address


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AENV_KUBERNETES_BUNDLE_ADDRESS", "10.0.0.5:port"),
        ("AENV_KUBERNETES_BUNDLE_ADDRESS", "10.0.0.5:70000"),
        ("AENV_KUBERNETES_UNSCHEDULABLE_SECONDS", "soon"),
        ("AENV_KUBERNETES_PACKING", "tight"),
        ("AENV_KUBERNETES_HOST_MEMORY", "much"),
        ("AENV_KUBERNETES_HOST_INSTANCES", "0"),
        ("AENV_KUBERNETES_HOST_CPU", "all"),
        ("AENV_KUBERNETES_SHARE_HOSTS", "maybe"),
    ],
)
def test_an_invalid_setting_is_refused_by_its_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        KubernetesSettings.from_environment()


def test_settings_of_hosts_are_read_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HOST_MEMORY": "8Gi", "HOST_INSTANCES": "500", "HOST_CPU": "500m", "HOSTS": "3", "HOST_IDLE_SECONDS": "60",
             "HOST_RESERVE": "16Mi", "SHARE_HOSTS": "true", "PACKING": "packed"}  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(f"AENV_KUBERNETES_{name}", value)
    found = KubernetesSettings.from_environment()
    assert found.hosts == HostLimits(HostSize(500, 8 << 30), 3, 60.0, 16 << 20, share=True)
    assert (found.packing, found.host_cpus) == ("packed", 0.5)


@pytest.mark.parametrize(
    ("packing", "isolation", "level"),
    [
        ("auto", "namespaces", ""), ("auto", "confined", "confined"), ("auto", "auto", "auto"),
        ("packed", "namespaces", "namespaces"), ("pods", "confined", ""),
    ],
)  # fmt: skip
def test_instances_are_packed_where_a_level_for_hosts_was_accepted(packing: Any, isolation: Any, level: str) -> None:
    assert host_level(KubernetesSettings(packing=packing), EngineOptions(isolation=isolation)) == level
