"""Names, methods and positional parameters that code written for the earlier package uses."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from aenv.authoring.declarations import Registry
from aenv.client.scheduler_client import AEnvSchedulerClient
from aenv.core import environment
from aenv.core.function_registry import FunctionRegistry, get_function_registry
from aenv.errors import Conflict, ToolError
from aenv.runtime.calls.endpoints import EndpointCatalog
from aenv.schema.instances import EnvStatus


def test_the_module_of_environment_has_its_earlier_names() -> None:
    assert environment.ToolError is ToolError
    assert environment.EnvStatus is EnvStatus
    for name in ("AEnvSchedulerClient", "EnvInstance", "EnvironmentError", "Tool", "UnrecoverableEnvironmentError"):
        assert hasattr(environment, name)


def test_the_function_registry_has_its_earlier_methods(registry: Registry) -> None:
    def double(n: int) -> int:
        return 2 * n

    assert isinstance(get_function_registry(), FunctionRegistry)
    assert registry.register_function(double, "/twice", "GET") is double
    assert registry.list_functions_simple() == {"double": "/twice"}
    about = registry.list_functions()["double"]
    assert (about["endpoint"], about["method"], about["is_async"]) == ("/twice", "GET", False)
    registry.set_server(object())
    assert registry.get_server() is None
    other = FunctionRegistry()
    other.register_function(double)
    assert other.list_functions_simple() == {"double": "/functions/double"}
    with pytest.raises(ValueError, match="invalid method"):
        registry.register_function(double, method="FETCH")


def test_create_env_service_takes_its_parameters_by_position() -> None:
    earlier = [
        "self", "name", "service_name", "replicas", "environment_variables", "owner", "pvc_name", "mount_path",
        "storage_size", "port", "cpu_request", "cpu_limit", "memory_request", "memory_limit",
        "ephemeral_storage_request", "ephemeral_storage_limit",
    ]  # fmt: skip
    parameters = list(inspect.signature(AEnvSchedulerClient.create_env_service).parameters)
    assert parameters[: len(earlier)] == earlier


def test_of_several_rewards_the_first_answers_in_a_project_of_the_earlier_version(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aenv import register_reward

    @register_reward
    def first() -> float:
        return 1.0

    @register_reward
    def second() -> float:
        return 2.0

    catalog = EndpointCatalog(registry)
    try:
        with pytest.raises(Conflict, match="first, second"):
            catalog.reward(None)
        monkeypatch.setenv("AENV_COMPATIBILITY", "0.1")
        assert catalog.reward(None).name == "first"
        assert catalog.reward("second").name == "second"
    finally:
        catalog.workers.close()


def test_a_project_declares_the_earlier_behaviour(tmp_path: Any) -> None:
    from aenv.project.manifest import parse

    variables = parse('{"name": "x", "version": "1", "compatibility": "0.1"}').variables()
    assert variables == {"AENV_ARGUMENT_TYPES": "lenient", "AENV_COMPATIBILITY": "0.1"}
    lenient = parse('{"name": "x", "version": "1", "argumentTypes": "lenient"}').variables()
    assert lenient == {"AENV_ARGUMENT_TYPES": "lenient"}
