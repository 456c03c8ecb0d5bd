"""Settings of the Kubernetes engine."""

from __future__ import annotations

import pytest

from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings
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
    ],
)
def test_an_invalid_setting_is_refused_by_its_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        KubernetesSettings.from_environment()
