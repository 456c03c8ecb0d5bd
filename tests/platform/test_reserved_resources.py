"""What an instance reserves, where config.json tells requests from limits."""

from __future__ import annotations

from typing import Any

from aenv.isolation.limits.cgroups import Limits
from aenv.platform.instances.requests.requested_resources import reserved
from aenv.project.manifest import Manifest
from aenv.schema.instances import EnvInstanceCreateRequest

LIMITS = Limits(memory=4 << 30, cpus=2.0, disk=5 << 30)


def reserved_by(deploy: dict[str, Any], **asked: Any) -> Limits | None:
    manifest = Manifest.model_validate({"name": "a", "version": "1.0.0", "deployConfig": deploy})
    return reserved(EnvInstanceCreateRequest(envName="a@1.0.0", **asked), manifest, LIMITS)


def test_the_common_keys_reserve_the_limits() -> None:
    assert reserved_by({"cpu": "2", "memory": "4Gi"}) is None


def test_the_older_keys_reserve_less_than_the_limits() -> None:
    found = reserved_by({"cpuRequest": "500m", "cpuLimit": "2", "memoryRequest": "1Gi", "memoryLimit": "4Gi"})
    assert found is not None
    assert (found.cpus, found.memory, found.disk) == (0.5, 1 << 30, 5 << 30)


def test_an_amount_in_the_create_request_is_reserved_as_well() -> None:
    found = reserved_by({"cpuRequest": "500m", "cpuLimit": "2"}, cpu="2")
    assert found is not None
    assert found.cpus == 2.0
